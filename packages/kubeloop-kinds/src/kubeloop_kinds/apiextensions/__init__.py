"""Kinds of the group apiextensions, by version."""
