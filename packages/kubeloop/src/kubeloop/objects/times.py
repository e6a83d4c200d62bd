"""Times as Kubernetes writes them: RFC 3339 in UTC, whole seconds or microseconds.

`metav1.Time` (creationTimestamp and most others) has no fraction, `metav1.MicroTime` (leases,
events) always six digits. Reading accepts what RFC 3339 allows; finer fractions are cut.
"""

from __future__ import annotations

import datetime as dt
import math
import re

_RFC3339 = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)[Tt](\d\d):(\d\d):(\d\d)(?:\.(\d+))?(?:[Zz]|([+-])(\d\d):(\d\d))\Z",
    re.ASCII,
)


def format_time(moment: dt.datetime) -> str:
    """Write a `metav1.Time`; what is finer than a second is cut. The time must be aware."""
    return _utc(moment).strftime("%Y-%m-%dT%H:%M:%SZ")


def format_micro_time(moment: dt.datetime) -> str:
    """Write a `metav1.MicroTime`. The time must be aware."""
    return _utc(moment).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def parse_time(text: str) -> dt.datetime:
    """Read either form as an aware UTC time. Raises ValueError that shows the text."""
    match = _RFC3339.match(text)
    if match is None:
        raise ValueError(f"time {text!r} is not RFC 3339, as in '2030-01-02T03:04:05Z'")
    *parts, fraction, sign, hours, minutes = match.groups()
    try:
        moment = dt.datetime(*map(int, parts), tzinfo=_zone(sign, hours, minutes))  # type: ignore[misc, arg-type]  # the pattern has exactly six numbers
        utc = moment.astimezone(dt.UTC)
    except (ValueError, OverflowError) as error:
        raise ValueError(f"time {text!r} does not exist: {error}") from error
    return utc.replace(microsecond=int((fraction or "0")[:6].ljust(6, "0")))


def _zone(sign: str | None, hours: str, minutes: str) -> dt.timezone:
    if sign is None:
        return dt.UTC
    offset = dt.timedelta(hours=int(hours), minutes=int(minutes))
    return dt.timezone(offset if sign == "+" else -offset)


def _utc(moment: dt.datetime) -> dt.datetime:
    if moment.tzinfo is None:
        raise ValueError(f"time {moment!r} has no time zone; use an aware one, in UTC for choice")
    return moment.astimezone(dt.UTC)


def unix_seconds(text: str | None) -> float:
    """Read a Kubernetes time as seconds since 1970; minus infinity if it is unreadable."""
    try:
        return parse_time(text).timestamp() if text else -math.inf
    except ValueError:
        return -math.inf
