"""Elasti: workloads that sleep at zero replicas and wake on the first connection."""
