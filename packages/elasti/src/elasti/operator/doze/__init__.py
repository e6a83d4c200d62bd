"""Doze: pods stay and serve, and what they request shrinks until they are used again."""
