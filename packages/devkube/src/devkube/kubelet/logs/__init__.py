"""What containers print: stored, read, and served."""
