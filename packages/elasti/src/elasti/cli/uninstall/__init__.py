"""Leaving a cluster as it was: every target awake, every Service its own, nothing of ours left."""
