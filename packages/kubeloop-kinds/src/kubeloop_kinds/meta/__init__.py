"""Kinds of the group meta, by version."""
