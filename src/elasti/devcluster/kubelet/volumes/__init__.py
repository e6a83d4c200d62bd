"""Volumes: what files a pod is given, and where."""
