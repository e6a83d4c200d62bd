"""Kinds of the group policy, by version."""
