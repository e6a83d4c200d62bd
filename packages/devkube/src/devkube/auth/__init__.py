"""RBAC, ServiceAccount tokens, impersonation and access reviews of a dev cluster."""
