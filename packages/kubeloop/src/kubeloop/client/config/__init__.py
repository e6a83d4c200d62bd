"""Client configuration: kubeconfig files, the pod's ServiceAccount, the server's endpoint."""
