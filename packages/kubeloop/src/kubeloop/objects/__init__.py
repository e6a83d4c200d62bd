"""Kubernetes data as values: identifiers, keys, metadata, selectors, patches, conditions.

Pure: no I/O, no clock, no randomness. import-linter checks it.
"""
