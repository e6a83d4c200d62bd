"""HTTP/2 and gRPC: streams held, and relayed to a pod."""
