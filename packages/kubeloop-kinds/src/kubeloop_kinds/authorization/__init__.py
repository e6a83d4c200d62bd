"""Kinds of the group authorization, by version."""
