"""Sources of evidence that a target is in use."""
