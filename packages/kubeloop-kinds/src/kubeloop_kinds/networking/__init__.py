"""Kinds of the group networking, by version."""
