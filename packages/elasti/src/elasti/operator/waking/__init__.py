"""Waking targets: one way for every replica, the leader's plan and the finalizer."""
