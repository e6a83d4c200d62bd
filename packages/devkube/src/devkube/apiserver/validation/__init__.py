"""Kubernetes' own kinds: defaults, immutable fields, validation. Pure functions on dictionaries."""
