"""Kinds of the group autoscaling, by version."""
