"""Every order of events around one hand-over, searched state by state; see `search`."""
