"""Who else writes a target's replicas, as the server itself recorded it. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kubeloop.objects.meta import JsonObject


def replicas_manager(obj: JsonObject) -> str:
    """Return the field manager that wrote `spec.replicas` last; "" where nobody is recorded."""
    entries = [
        entry
        for entry in obj.get("metadata", {}).get("managedFields") or ()
        if "f:replicas" in ((entry.get("fieldsV1") or {}).get("f:spec") or {})
    ]
    newest = max(entries, key=lambda entry: entry.get("time") or "", default=None)
    return str(newest.get("manager") or "") if newest else ""
