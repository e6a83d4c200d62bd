"""Work queues, controllers, managers, leader election, events: what reconciles."""
