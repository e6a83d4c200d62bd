"""Health checks over the network, as a kubelet makes them: HTTP, TCP and gRPC."""
