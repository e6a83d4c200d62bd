"""Kinds of the group events, by version."""
