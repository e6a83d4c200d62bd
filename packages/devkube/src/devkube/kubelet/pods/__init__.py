"""Pods: what is known of each, what to do next, and the workers that do it."""
