"""Observed ElastiServices: everything is decided, and nothing is done."""
