"""A client that accounts for every request it sends; a process of its own."""
