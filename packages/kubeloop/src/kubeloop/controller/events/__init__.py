"""Kubernetes Events: what is recorded, how repetition is correlated, and how it is written."""
