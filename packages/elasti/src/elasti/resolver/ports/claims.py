"""Which Service owns which resolver port: conflicts and quarantine. Pure: `now` is passed in.

A connection's port is all that identifies its Service, so a port must not change its owner while a node
may still send the old owner's traffic there:

- Of several objects that claim a port the oldest owns it; one whose status names it comes before one of which
  only a slice says so.
- While the slice of another Service that claims it, too, points at a port, and for a settling time after it is
  gone, the port has no owner: connections are refused, which a client can retry, and not delivered to the
  wrong Service. A slice alone proves nothing: users who may write slices in one namespace could close every
  port by it.
- A Service that moves to another port, or whose ElastiService is deleted, keeps the old port for that time,
  before all others: nodes that are behind still send its traffic there.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from elasti.resolver.projections import ServiceKey
    from elasti.resolver.proxy.upstream.interface import PortProtocol


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PortClaim:
    """A Service wants a port; `age` sorts older objects first. `reported`: status names the port."""

    key: ServiceKey
    port_name: str
    protocol: PortProtocol
    age: tuple[str, str]
    reported: bool = True


class PortDecision(NamedTuple):
    """Whose a port is; `recheck_at` is when that may change by time alone."""

    claim: PortClaim | None
    recheck_at: float | None = None


class PortClaims:
    """The claims and the published slices of one resolver."""

    def __init__(self, *, settle: float) -> None:
        self._settle = settle
        self._claims: dict[int, dict[ServiceKey, PortClaim]] = {}
        self._claimed_by: dict[ServiceKey, frozenset[int]] = {}
        # Which Services' slices point at a port; None while they do, else when they ceased to.
        self._pointing: dict[int, dict[ServiceKey, float | None]] = {}
        self._published: dict[ServiceKey, frozenset[int]] = {}
        # Claims that are kept for nodes that are behind, and for nothing else.
        self._left: set[tuple[int, ServiceKey]] = set()

    @property
    def ports(self) -> Iterable[int]:
        """Every port that is claimed."""
        return self._claims.keys()

    def claim(self, key: ServiceKey, wanted: Mapping[int, PortClaim]) -> set[int]:
        """Replace the claims of a Service; returns the ports to decide about again."""
        changed = set(self._claimed_by.get(key, frozenset()) - wanted.keys())
        for port in changed:
            if key in self._pointing.get(port, {}) and self._claims[port][key].reported:
                self._left.add((port, key))
            else:
                self._drop(port, key)
        for port, claim in wanted.items():
            self._left.discard((port, key))
            claims = self._claims.setdefault(port, {})
            before = claims.get(key)
            if before is not None and before.reported and not claim.reported:
                continue  # The operator named it, and names another now; traffic still comes here.
            if before != claim:
                claims[key] = claim
                changed.add(port)
        if wanted:
            self._claimed_by[key] = self._claimed_by.get(key, frozenset()) | wanted.keys()
        return changed

    def has_any(self, key: ServiceKey) -> bool:
        """Whether a Service claims a port, or keeps one for nodes that are behind."""
        return key in self._claimed_by

    def _drop(self, port: int, key: ServiceKey) -> None:
        claims = self._claims[port]
        del claims[key]
        if not claims:
            del self._claims[port]
        self._left.discard((port, key))
        if rest := self._claimed_by[key] - {port}:
            self._claimed_by[key] = rest
        else:
            del self._claimed_by[key]

    def publish(self, key: ServiceKey, ports: frozenset[int], *, now: float) -> set[int]:
        """Note at which ports a Service's slices point; returns the ports to decide about again."""
        before = self._published.pop(key, frozenset())
        if ports:
            self._published[key] = ports
        for port in before - ports:
            self._pointing[port][key] = now
        for port in ports:
            self._pointing.setdefault(port, {})[key] = None
        return set(before ^ ports)

    def decide(self, port: int, *, now: float) -> PortDecision:
        """Decide whose a port is now."""
        self._forget(port, now)
        claims = self._claims.get(port)
        if not claims:
            return PortDecision(None)
        first = min(claims.values(), key=lambda claim: self._rank(port, claim))
        others = {
            key: gone
            for key, gone in self._pointing.get(port, {}).items()
            if key != first.key and key in claims and claims[key].reported
        }
        if not others:
            return PortDecision(first, self._leaves_at(port, first.key))
        times = [gone for gone in others.values() if gone is not None]
        if len(times) < len(others):
            return PortDecision(None)
        return PortDecision(None, max(times) + self._settle)

    def _rank(self, port: int, claim: PortClaim) -> tuple[bool, bool, tuple[str, str]]:
        # No other Service can have it before that one has left for good.
        return ((port, claim.key) not in self._left, not claim.reported, claim.age)

    def _leaves_at(self, port: int, key: ServiceKey) -> float | None:
        gone = self._pointing[port][key] if (port, key) in self._left else None
        return None if gone is None else gone + self._settle

    def _forget(self, port: int, now: float) -> None:
        pointing = self._pointing.get(port)
        if pointing is None:
            return
        for key, gone in list(pointing.items()):
            if gone is not None and now - gone >= self._settle:
                del pointing[key]
                if (port, key) in self._left:
                    self._drop(port, key)
        if not pointing:
            del self._pointing[port]
