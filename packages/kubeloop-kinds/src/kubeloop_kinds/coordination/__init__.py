"""Kinds of the group coordination, by version."""
