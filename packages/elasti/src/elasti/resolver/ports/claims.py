"""Which Service owns which resolver port: conflicts and quarantine. Pure: `now` is passed in.

A connection's port is all that identifies its Service, so a port must not change its owner while a node
may still send the old owner's traffic there:

- The owner keeps its port for as long as it claims it by its status, and longer while its traffic may come: a
  claim that comes later, of an object of any age, neither takes nor closes the port. Users who may write status
  and slices in one namespace could close every port otherwise.
- A Service that moves to another port, or whose ElastiService is deleted, keeps the old port while its slice
  points there and for a settling time after: nodes that are behind still send its traffic there.
- A port without an owner goes to the oldest object that claims it; a claim by status comes before a claim by a
  slice alone. While slices of two Services that claim it by status point there, and until that has settled, it
  has no owner: a refused client can retry, and no request reaches the wrong Service. So decide when all objects are
  known: the first decision counts.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import NamedTuple

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
        self._claimed_by: dict[ServiceKey, set[int]] = {}
        # Which Services' slices point at a port, and when the others ceased to, in that order.
        self._pointing: dict[int, set[ServiceKey]] = {}
        self._ceased: dict[int, dict[ServiceKey, float]] = {}
        self._published: dict[ServiceKey, frozenset[int]] = {}
        # Claims that are kept for nodes that are behind, and for nothing else.
        self._left: set[tuple[int, ServiceKey]] = set()
        # Whose each port was when it was last decided.
        self._owners: dict[int, ServiceKey] = {}
        # Who claims a port by its status, and who of them came when another did already.
        self._reporting: dict[int, set[ServiceKey]] = {}
        self._rivals: dict[int, set[ServiceKey]] = {}

    @property
    def ports(self) -> Iterable[int]:
        """Every port that is claimed."""
        return self._claims.keys()

    def claim(self, key: ServiceKey, wanted: Mapping[int, PortClaim]) -> set[int]:
        """Replace the claims of a Service; returns the ports to decide about again."""
        changed = self._claimed_by.get(key, set()) - wanted.keys()
        for port in changed:
            if self._may_get_traffic(port, key) and self._claims[port][key].reported:
                self._left.add((port, key))
                self._reporting[port].discard(key)
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
            if claim.reported:
                self._note_report(port, key)
        if wanted:
            self._claimed_by.setdefault(key, set()).update(wanted)
        return changed

    def _note_report(self, port: int, key: ServiceKey) -> None:
        reporting = self._reporting.setdefault(port, set())
        if reporting and key not in reporting:
            self._rivals.setdefault(port, set()).add(key)
        reporting.add(key)

    def _may_get_traffic(self, port: int, key: ServiceKey) -> bool:
        return key in self._pointing.get(port, ()) or key in self._ceased.get(port, ())

    def has_any(self, key: ServiceKey) -> bool:
        """Whether a Service claims a port, or keeps one for nodes that are behind."""
        return key in self._claimed_by

    def _drop(self, port: int, key: ServiceKey) -> None:
        claims = self._claims[port]
        del claims[key]
        if not claims:
            del self._claims[port]
        self._left.discard((port, key))
        if self._owners.get(port) == key:
            del self._owners[port]
        reporting = self._reporting.get(port, set())
        reporting.discard(key)
        if not reporting:
            self._reporting.pop(port, None)
            self._rivals.pop(port, None)
        self._claimed_by[key].discard(port)
        if not self._claimed_by[key]:
            del self._claimed_by[key]

    def publish(self, key: ServiceKey, ports: frozenset[int], *, now: float) -> set[int]:
        """Note at which ports a Service's slices point; returns the ports to decide about again."""
        before = self._published.pop(key, frozenset())
        if ports:
            self._published[key] = ports
        for port in before - ports:
            self._pointing[port].discard(key)
            if not self._pointing[port]:
                del self._pointing[port]
            self._ceased.setdefault(port, {})[key] = now
        for port in ports - before:
            self._pointing.setdefault(port, set()).add(key)
            self._ceased.get(port, {}).pop(key, None)
        return set(before ^ ports)

    def decide(self, port: int, *, now: float) -> PortDecision:
        """Decide whose a port is now."""
        self._forget(port, now)
        decision = self._decided(port)
        if decision.claim is not None:
            self._owners[port] = decision.claim.key
        return decision

    def new_rivals(self, port: int) -> set[ServiceKey]:
        """Return who came to claim a port by its status beside another since the last call; not its owner."""
        if port not in self._rivals:
            return set()
        owner, reporting = self._owners.get(port), self._reporting.get(port, set())
        rivals = self._rivals.pop(port) & reporting
        # The owner itself may have come second.
        return reporting - {owner} if owner in rivals else rivals

    def _decided(self, port: int) -> PortDecision:
        claims = self._claims.get(port)
        if not claims:
            return PortDecision(None)
        owner = claims.get(self._owners[port]) if port in self._owners else None
        if owner is not None and owner.reported:
            return PortDecision(owner, self._leaves_at(port, owner.key))
        first = min(claims.values(), key=lambda claim: self._rank(port, claim))
        others = {
            key
            for key in (*self._pointing.get(port, ()), *self._ceased.get(port, ()))
            if key != first.key and key in claims and claims[key].reported
        }
        leaves_at = self._leaves_at(port, first.key)
        if not others:
            return PortDecision(first, leaves_at)
        # The first may be one that left: the others can do nothing before it is forgotten.
        ceased = self._ceased.get(port, {})
        times = [ceased[key] + self._settle for key in others if key in ceased]
        if leaves_at is not None:
            times.append(leaves_at)
        return PortDecision(None, min(times, default=None))

    def _rank(self, port: int, claim: PortClaim) -> tuple[bool, bool, tuple[str, str]]:
        # No other Service can have it before that one has left for good.
        return ((port, claim.key) not in self._left, not claim.reported, claim.age)

    def _leaves_at(self, port: int, key: ServiceKey) -> float | None:
        gone = self._ceased.get(port, {}).get(key) if (port, key) in self._left else None
        return None if gone is None else gone + self._settle

    def _forget(self, port: int, now: float) -> None:
        ceased = self._ceased.get(port, {})
        while ceased:
            key, gone = next(iter(ceased.items()))
            if now < gone + self._settle:
                return  # compared as `recheck_at` was made: `now - gone` may be a rounding smaller
            del ceased[key]
            if (port, key) in self._left:
                self._drop(port, key)
        self._ceased.pop(port, None)
