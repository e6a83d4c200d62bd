"""Who may have which resolver port: contests and quarantine. Pure: the caller says what time it is.

A connection's port is all that tells its Service, so a port must not change hands while a node may
still send the old owner's traffic there:

- Of several objects that claim a port the oldest has it.
- While a slice of another Service points at a port, and for a settling time after it is gone, the
  port is nobody's: connections are refused, which a client can repeat, and not delivered to strangers.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from elasti.resolver.objects import ServiceKey
    from elasti.resolver.proxy.ports import PortProtocol


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A Service wants a port; `age` sorts older objects first."""

    key: ServiceKey
    port_name: str
    protocol: PortProtocol
    age: tuple[str, str]


class Verdict(NamedTuple):
    """Whose a port is; `again_at` is when that may change without anything else happening."""

    claim: Claim | None
    again_at: float | None = None


class PortClaims:
    """The claims and the published slices of one resolver."""

    def __init__(self, *, settle: float) -> None:
        self._settle = settle
        self._claims: dict[int, dict[ServiceKey, Claim]] = {}
        self._claimed_by: dict[ServiceKey, frozenset[int]] = {}
        # Which Services' slices point at a port; None while they do, else when they ceased to.
        self._pointing: dict[int, dict[ServiceKey, float | None]] = {}
        self._published: dict[ServiceKey, frozenset[int]] = {}

    @property
    def ports(self) -> Iterable[int]:
        """Every port that somebody claims."""
        return self._claims.keys()

    def claim(self, key: ServiceKey, wanted: Mapping[int, Claim]) -> set[int]:
        """Replace the claims of a Service; returns the ports to judge anew."""
        before = self._claimed_by.pop(key, frozenset())
        for port in before - wanted.keys():
            claims = self._claims[port]
            del claims[key]
            if not claims:
                del self._claims[port]
        changed = set(before - wanted.keys())
        for port, claim in wanted.items():
            claims = self._claims.setdefault(port, {})
            if claims.get(key) != claim:
                claims[key] = claim
                changed.add(port)
        if wanted:
            self._claimed_by[key] = frozenset(wanted)
        return changed

    def publish(self, key: ServiceKey, ports: frozenset[int], *, now: float) -> set[int]:
        """Note at which ports a Service's slices point; returns the ports to judge anew."""
        before = self._published.pop(key, frozenset())
        if ports:
            self._published[key] = ports
        for port in before - ports:
            self._pointing[port][key] = now
        for port in ports:
            self._pointing.setdefault(port, {})[key] = None
        return set(before ^ ports)

    def judge(self, port: int, *, now: float) -> Verdict:
        """Decide whose a port is now."""
        self._forget(port, now)
        claims = self._claims.get(port)
        if not claims:
            return Verdict(None)
        oldest = min(claims.values(), key=lambda claim: claim.age)
        others = {k: gone for k, gone in self._pointing.get(port, {}).items() if k != oldest.key}
        if not others:
            return Verdict(oldest)
        times = [gone for gone in others.values() if gone is not None]
        if len(times) < len(others):
            return Verdict(None)
        return Verdict(None, max(times) + self._settle)

    def _forget(self, port: int, now: float) -> None:
        pointing = self._pointing.get(port)
        if pointing is None:
            return
        for key, gone in list(pointing.items()):
            if gone is not None and now - gone >= self._settle:
                del pointing[key]
        if not pointing:
            del self._pointing[port]
