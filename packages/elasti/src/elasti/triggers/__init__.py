"""Triggers, one file each: what shows that a target is in use. See `registry`."""
