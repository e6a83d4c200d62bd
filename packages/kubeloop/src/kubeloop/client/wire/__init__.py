"""HTTP/1.1 to an API server: pooled requests, and lists and watches on connections of their own."""
