"""Kinds of the group rbac, by version."""
