"""Ratcheting: what was wrong before a change, and is as it was, does not stand in its way."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from elasti.devcluster.apiserver.status import Fault
from kubeloop.objects.patches import same_json

if TYPE_CHECKING:
    from elasti.devcluster.apiserver.status import FieldError
    from kubeloop.objects.meta import JsonObject

_PART = re.compile(r"\[(\d+)\]|([^.\[\]]+)")
_ABSENT = object()


def unchanged(error: FieldError, new: JsonObject, old: JsonObject) -> bool:
    """Whether the value at fault is the same before and after; for a missing one, its parent."""
    path = [int(index) if index else name for index, name in _PART.findall(error.field)]
    if not path or path[0] == "metadata":
        return False
    if error.fault is Fault.REQUIRED:
        path.pop()
    after, before = _value(new, path), _value(old, path)
    return after is not _ABSENT and before is not _ABSENT and same_json(after, before)


def _value(obj: Any, path: list[str | int]) -> Any:
    for part in path:
        try:
            obj = obj[part]
        except (KeyError, IndexError, TypeError):
            return _ABSENT
    return obj
