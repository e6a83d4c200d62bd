"""The reflector: lists and watches one resource, and feeds what it learns to a queue."""
