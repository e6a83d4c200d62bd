"""Patches and field ownership: the patch verb, server-side apply, managedFields."""
