"""The operator's watches and caches."""
