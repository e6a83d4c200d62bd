"""Cells: times as ages, lists as text, the way kubectl's users know them."""

from __future__ import annotations

import datetime as dt
from typing import Any

from devkube.apiserver.registry.resources import dig
from kubeloop.objects.meta import JsonObject
from kubeloop.objects.selectors import LabelSelector, SelectorError

NONE = "<none>"
UNKNOWN = "<unknown>"


def parse_time(text: str) -> dt.datetime | None:
    """Read an RFC 3339 time; None for anything else."""
    try:
        return dt.datetime.fromisoformat(text)
    except ValueError:
        return None


def age(since: str | None, now: dt.datetime) -> str:
    """Show the time since a moment: `5s`, `3m12s`, `2d4h`."""
    moment = parse_time(since) if since else None
    if moment is None:
        return UNKNOWN
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=dt.UTC)
    return duration((now - moment).total_seconds())


def duration(seconds: float) -> str:
    """Show a duration with at most two units, coarser the longer it is."""
    total = max(int(seconds), 0)
    minutes, hours, days, years = total // 60, total // 3600, total // 86400, total // 31_536_000
    steps = (
        (seconds <= -2, "<invalid>"),
        (total < 120, f"{total}s"),
        (minutes < 10, _two(minutes, "m", total % 60, "s")),
        (hours < 3, f"{minutes}m"),
        (hours < 8, _two(hours, "h", minutes % 60, "m")),
        (hours < 48, f"{hours}h"),
        (days < 8, _two(days, "d", hours % 24, "h")),
        (days < 730, f"{days}d"),
        (years < 8, _two(years, "y", days % 365, "d")),
    )
    return next((text for fits, text in steps if fits), f"{years}y")


def _two(first: int, unit: str, second: int, small: str) -> str:
    return f"{first}{unit}{second}{small}" if second else f"{first}{unit}"


def get(obj: Any, *path: str, default: Any = None) -> Any:
    """Return what lies at a path, or a default."""
    return dig(obj, path, default)


def created(obj: JsonObject, now: dt.datetime) -> str:
    """Show an object's age."""
    return age(obj["metadata"].get("creationTimestamp"), now)


def labels(value: JsonObject | None) -> str:
    """Show a map of labels."""
    return ",".join(f"{key}={val}" for key, val in sorted((value or {}).items())) or NONE


def selector(value: JsonObject | None) -> str:
    """Show a LabelSelector."""
    try:
        return (str(LabelSelector.from_json(value)) if value else "") or NONE
    except SelectorError:
        return NONE
