"""The output of containers: stored, read, and served."""
