"""Probes: asking containers how they are."""
