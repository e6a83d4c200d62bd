"""Disruption budgets: how many pods may be evicted."""
