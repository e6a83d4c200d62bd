"""Patches: how each media type changes an object. Pure."""
