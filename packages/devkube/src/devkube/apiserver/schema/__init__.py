"""What the server knows of types: Kubernetes' own from derived tables, custom ones from CRDs."""
