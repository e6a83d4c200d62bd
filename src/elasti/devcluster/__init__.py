"""A Kubernetes for a laptop or a CI job: API server, controllers, kubelet, service proxy.

Serves any kind. Imports kubeloop only and never Elasti's own API, so that it proves nothing by
knowing the answer. Not for production: that is any conformant cluster.
"""
