"""Kinds of the group storage, by version."""
