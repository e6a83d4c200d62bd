"""Transforms that most informers want."""

from __future__ import annotations

from typing import Any


def drop_managed_fields(obj: Any) -> Any:
    """Remove `metadata.managedFields`, about half of a dictionary's memory, in place.

    Structs never have them.
    """
    if isinstance(obj, dict):
        metadata = obj.get("metadata")
        if isinstance(metadata, dict):
            metadata.pop("managedFields", None)
    return obj
