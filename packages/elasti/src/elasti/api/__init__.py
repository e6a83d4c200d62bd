"""The ElastiService API as values: types, defaults, validation, CRD, names, wire messages. Pure."""
