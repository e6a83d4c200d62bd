"""Connections to pods: the search for one, the pool, the connection."""
