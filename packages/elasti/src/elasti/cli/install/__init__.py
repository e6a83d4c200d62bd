"""Elasti in somebody's cluster: what is put there, how it gets there, and how it goes again."""
