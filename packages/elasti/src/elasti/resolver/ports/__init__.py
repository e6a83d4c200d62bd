"""The resolver's listening ports: who claims them, and what happens on accept."""
