"""Garbage collection: objects go with their owners."""
