"""Work queues for controllers: unique items, priorities, delays, rate limits."""
