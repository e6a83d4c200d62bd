"""The data path: bytes in, bytes out, with as little Python in between as correctness allows."""
