"""What the operator watches, and the caches that it keeps."""
