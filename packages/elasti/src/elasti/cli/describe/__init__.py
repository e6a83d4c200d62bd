"""`elasti describe`: everything about one ElastiService, gathered, rendered, and with advice."""
