"""Kinds of the group discovery, by version."""
