"""Who may do what in a dev cluster: RBAC, ServiceAccount tokens, impersonation, reviews."""
