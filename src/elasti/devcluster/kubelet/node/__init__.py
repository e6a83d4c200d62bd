"""The node itself: its object and its lease."""
