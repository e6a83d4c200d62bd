"""The Services that the resolver answers for: what it holds, wakes and answers."""
