"""Numbers that more than one program knows: the only place where they are written. Pure.

A default that one program alone knows stands in its settings.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from elasti.api.types import ElastiServiceSpec

COOLDOWN = 900
"""Seconds without use before a target sleeps."""
POLLING_INTERVAL = 30.0
"""Seconds between two readings of a trigger."""
ENGAGE_SETTLE = 15.0
"""Seconds that endpoints need to reach the slowest node."""

OPERATOR_PORT = 8013
"""Where resolvers ask for wake-ups."""
HEALTH_PORT = 8081
RESOLVER_ADMIN_PORT = 8013
RESOLVER_SHARED_PORT = 8012
DASHBOARD_PORT = 8014
"""Where the Host header names the Service."""
FIRST_RESOLVER_PORT = 20000
LAST_RESOLVER_PORT = 29999
"""The operator gives every port of a Service one of these; NetworkPolicies let them through."""

COLD_START_BOUNDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
"""The buckets of a cold start's stages, some of which each program measures."""

MAX_PAGE_BYTES = 60 * 1024
"""How large a waiting page of a user's own may be: it is kept for every browser that is slow to read."""

TRIGGER_VALUE_METRIC = "elasti_trigger_value"
"""Where the operator shows what triggers show now; `elasti describe` reads it."""

_STALE_POLLS = 4
_MIN_STALE_AFTER = 120.0


def cooldown_of(spec: ElastiServiceSpec) -> float:
    """Return the cooldown in seconds; zero means the default, as in KubeElasti."""
    return float(spec.cooldown_period or COOLDOWN)


def look_of(spec: ElastiServiceSpec) -> float:
    """Return for how many seconds the resolver looks for arrivals before a sleep; 0: as it always does."""
    longest = max((trigger.look_seconds for trigger in spec.triggers), default=0.0)
    return min(longest, cooldown_of(spec))


def stale_after(polling_interval: float) -> float:
    """Return after how many seconds a trigger's reading proves nothing any more."""
    return max(_MIN_STALE_AFTER, _STALE_POLLS * polling_interval)
