"""The manager of a program: what it runs, in which order that starts and stops, and signals."""
