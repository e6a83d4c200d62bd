"""Authentication of a client: tokens, certificates, exec plugins, impersonation, TLS contexts."""
