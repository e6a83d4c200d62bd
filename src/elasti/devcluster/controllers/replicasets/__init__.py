"""ReplicaSets: as many pods as were asked for."""
