"""Kinds of the group authentication, by version."""
