"""Readers of triggers, one module for each type of `elasti.api.triggers`. See `reader`."""
