"""Who calls our ports: ServiceAccount tokens, checked by the API server or by the cluster's keys."""
