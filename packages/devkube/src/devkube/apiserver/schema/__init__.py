"""The types that the server knows: Kubernetes' own from derived tables, custom ones from CRDs."""
