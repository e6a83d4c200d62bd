"""Namespaces: what every one has from the start, and how one ends."""
