"""Kubernetes' own kinds: defaults, immutable fields, validation. Pure functions on dictionaries."""

from __future__ import annotations
