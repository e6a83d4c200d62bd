"""The Services of a resolver: held connections, wake requests and local answers."""
