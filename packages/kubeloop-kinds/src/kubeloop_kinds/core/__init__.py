"""Kinds of the group core, by version."""
