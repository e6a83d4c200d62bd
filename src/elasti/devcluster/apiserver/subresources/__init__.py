"""Subresources that are more than a part of an object: scale, bindings, evictions, reviews."""
