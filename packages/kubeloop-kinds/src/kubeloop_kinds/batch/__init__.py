"""Kinds of the group batch, by version."""
