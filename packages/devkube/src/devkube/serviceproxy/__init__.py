"""The service proxy: cluster IPs that lead to endpoints, as kube-proxy makes them."""
