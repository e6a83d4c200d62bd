"""Numbers that more than one program needs, defined only here. Pure.

A default that one program alone knows stands in its settings.
"""

from __future__ import annotations

COOLDOWN = 900
"""Seconds without use before a target sleeps."""
POLLING_INTERVAL = 30.0
"""Seconds between two readings of a trigger."""
ENGAGE_SETTLE = 15.0
"""Seconds that endpoints need to reach the slowest node."""
CLOUD_ENGAGE_SETTLE = 90.0
"""Seconds in which a cloud's load balancer registers an endpoint: some health checks, each 15 s after the other."""

OPERATOR_PORT = 8013
"""Where resolvers ask for wake-ups."""
HEALTH_PORT = 8081
RESOLVER_ADMIN_PORT = 8013
RESOLVER_SHARED_PORT = 8012
"""Where the Host header names the Service."""
DASHBOARD_PORT = 8014
FIRST_RESOLVER_PORT = 20000
LAST_RESOLVER_PORT = 29999
"""The operator gives every port of a Service one of these, unless ELASTI_PORT_RANGE names others."""
LOWEST_DATA_PORT = 9000
"""Below are the programs' own ports. NetworkPolicies let all from here on through: a resolver opens no others, and
what sleeps is reached at a port of the former range until it has moved."""

COLD_START_BOUNDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
"""The buckets of a cold start's stages, some of which each program measures."""

DEPENDENCY_TIMEOUT = 30.0
"""Seconds for which a wake-up waits for the whole set of its dependencies: they may delay it, and not prevent it."""

ENROLMENT_OBSERVE_FOR = 86400.0
"""Seconds for which a Service is observed before its namespace's label `enforce` takes effect."""

MAX_PAGE_BYTES = 60 * 1024
"""How large a waiting page of a user's own may be: it is kept for every browser that is slow to read."""

TRIGGER_VALUE_METRIC = "elasti_trigger_value"
"""Where the operator shows what triggers show now; `elasti describe` reads it."""

_STALE_POLLS = 4
_MIN_STALE_AFTER = 120.0


def stale_after(polling_interval: float) -> float:
    """Return after how many seconds a trigger's reading is stale and proves nothing."""
    return max(_MIN_STALE_AFTER, _STALE_POLLS * polling_interval)
