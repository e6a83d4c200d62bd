"""Durations as Go writes them: `300ms`, `1h30m`, `-2s`."""

from __future__ import annotations

import re

_UNITS = {
    "ns": 1e-9,
    "us": 1e-6,
    "µs": 1e-6,
    "μs": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "m": 60.0,
    "h": 3600.0,
}
_PART = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|μs|ms|s|m|h)")
_WHOLE = re.compile(rf"[+-]?(?:{_PART.pattern})+\Z")


def parse_duration(text: str) -> float:
    """Return the seconds; raises ValueError with an example for what is no duration."""
    if text in {"0", "+0", "-0"}:
        return 0.0
    if not _WHOLE.match(text):
        raise ValueError(f"{text!r} is not a duration; write it like '8h', '90m' or '1h30m'")
    total = sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(text))
    return -total if text.startswith("-") else total
