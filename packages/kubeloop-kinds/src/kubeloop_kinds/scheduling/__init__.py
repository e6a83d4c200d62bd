"""Kinds of the group scheduling, by version."""
