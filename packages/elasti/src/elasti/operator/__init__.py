"""The operator: watches ElastiServices, decides, scales, and switches their Services' traffic."""
