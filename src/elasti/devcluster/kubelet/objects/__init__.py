"""Kubernetes objects, as much of them as a kubelet reads and writes."""
