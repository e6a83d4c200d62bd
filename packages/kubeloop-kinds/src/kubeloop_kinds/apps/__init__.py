"""Kinds of the group apps, by version."""
