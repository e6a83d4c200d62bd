"""Leader election with a Lease, on an event loop or on a thread of its own."""
