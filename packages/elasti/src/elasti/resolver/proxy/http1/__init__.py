"""HTTP/1.1: heads, bodies, and one exchange after another."""
