"""Resource versions: opaque to readers, comparable only where the specification allows it."""

from __future__ import annotations

import re

_WELL_FORMED = re.compile(r"[1-9][0-9]*\Z")


def compare_versions(left: str, right: str) -> int:
    """Order two resource versions of the same resource: negative, 0 or positive.

    Raises ValueError for what is not a decimal number without leading zero; `0` is none either.
    For freshness gates only; never decide by it whether to accept an event.
    """
    for version in (left, right):
        if not _WELL_FORMED.match(version):
            raise ValueError(f"resourceVersion {version!r} is not a positive decimal number")
    if len(left) != len(right):
        return len(left) - len(right)
    return (left > right) - (left < right)
