"""StatefulSets: pods with names of their own, in order."""
