"""A Kubernetes for a laptop or a CI job: API server, controllers, kubelet, service proxy.

Serves any kind. Imports kubeloop only, never the API of a program that is tested with it. Not for
production: that is any conformant cluster. Start at `cluster`.
"""
