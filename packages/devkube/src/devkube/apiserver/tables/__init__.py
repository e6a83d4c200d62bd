"""Tables: what `kubectl get` shows, computed by the server."""
