"""The book of resolver ports: which port of the resolver stands for which port of which Service.

A resolver knows a connection's target only by the port it came in on, so a port must never change
its meaning while any node may still send old traffic there. Four rules see to it:

- What is published (in a slice) or reported (in status) is kept; a published port wins over a
  reported one, since traffic goes there already.
- If two objects claim one port, the one that has it keeps it, and the other gets a new one: status and slices
  can be written by others. After a restart a port is of the one that both publishes and reports it, then of one
  that publishes it, then of one that reports it, and among equals of the oldest.
- A freed port is quarantined for an hour. Then the one freed longest ago is used first; ports that
  were not used since the start come before all of them.
- A namespace has at most half of the ports, and may have freed at most a twentieth of them within the last
  hour: edits of one Service cost ports for an hour, and must not cost other tenants theirs.

Pure: the caller says what time it is. The book is rebuilt from the cluster after a restart: what is in
use first, then what is quarantined (`quarantine`). A Service's first choice is by the hash of its name, so that a
stranger is unlikely to be given what another Service has left, even if nothing could be recorded.
"""

from __future__ import annotations

import collections
import dataclasses
import hashlib
from collections.abc import Iterable, Mapping, Sequence

from elasti.api.defaults import FIRST_RESOLVER_PORT, LAST_RESOLVER_PORT
from elasti.api.types import ElastiService

QUARANTINE = 3600.0
# A smaller share is not enough for a Service.
_LEAST_SHARE = 100


class PortsExhausted(Exception):
    """Every resolver port is taken or quarantined, or a namespace has had its share."""


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class PortOwner:
    """An ElastiService that holds ports; sorts by age. Without a namespace it has no share to keep to."""

    created: str
    uid: str
    namespace: str = dataclasses.field(default="", compare=False)


def port_owner(es: ElastiService) -> PortOwner:
    """Return who holds an ElastiService's resolver ports."""
    meta = es.metadata
    return PortOwner(meta.creation_timestamp or "", meta.uid, meta.namespace)


class PortBook:
    """Who holds which port. One writer: the leader's reconciler."""

    def __init__(self, first: int = FIRST_RESOLVER_PORT, last: int = LAST_RESOLVER_PORT) -> None:
        self._first = first
        self._size = last - first + 1
        self._owners: dict[int, PortOwner] = {}
        self._held: dict[PortOwner, dict[int, int]] = {}
        self._freed: dict[int, float] = {}
        self._freed_by: dict[int, str] = {}
        self._used: collections.Counter[str] = collections.Counter()
        self.unwritten: set[int] = set()
        """Ports that were freed and are not written down as quarantined; the caller's to empty."""

    def __repr__(self) -> str:
        return f"<PortBook {len(self._owners)} held, {len(self._freed)} freed of {self._size}>"

    def held_by(self, owner: PortOwner) -> dict[int, int]:
        """Return the Service port to resolver port mapping of one owner."""
        return dict(self._held.get(owner, {}))

    def owners_of(self, uid: str) -> list[PortOwner]:
        """Return the owners of that uid; one, or none."""
        return [owner for owner in self._held if owner.uid == uid]

    def is_of_another(self, owner: PortOwner, port: int) -> bool:
        """Whether a port is held, and not by this owner."""
        return self._owners.get(port, owner) != owner

    def claim(self, owner: PortOwner, wanted: Mapping[int, int]) -> None:
        """Take ports that are published or reported already: the first claim for a port counts.

        An owner keeps what it has, of whatever age it is. What is quarantined is not claimed: a report of
        it can only be an old one. What lies outside of the range is given up, and written down as quarantined:
        the range may be changed back, and another leader may have the former one.
        """
        held = self._held.setdefault(owner, {})
        for service_port, port in wanted.items():
            taken = service_port in held or port in self._owners or port in self._freed
            if not self._has(port):
                self.unwritten.add(port)
            elif not taken:
                self._take(owner, service_port, port)

    def assign(
        self, owner: PortOwner, service: str, ports: Sequence[int], now: float
    ) -> dict[int, int]:
        """Return a resolver port for each Service port, and free the owner's other ports.

        Raises PortsExhausted if too few are free.
        """
        held = self._held.setdefault(owner, {})
        for service_port in held.keys() - set(ports):
            self._free(owner, held[service_port], now)
        for service_port in ports:
            if service_port not in held:
                self._check_share(owner.namespace, now)
                self._take(owner, service_port, self._choose(f"{service}:{service_port}", now))
        return dict(held)

    def release(self, owner: PortOwner, now: float) -> None:
        """Free all ports of an owner that is gone."""
        for port in self.held_by(owner).values():
            self._free(owner, port, now)
        self._held.pop(owner, None)

    def quarantine(self, port: int, since: float) -> None:
        """Quarantine a port that was freed before this book was begun; not one that is held."""
        if self._has(port) and port not in self._owners:
            self._freed[port] = max(since, self._freed.get(port, since))

    def abandon(self, port: int, now: float) -> None:
        """Quarantine a port from now on that was in use by an unknown owner; not one that is held."""
        if self._has(port) and port not in self._owners:
            self._freed[port] = now
            self.unwritten.add(port)

    def _has(self, port: int) -> bool:
        return self._first <= port < self._first + self._size

    def _take(self, owner: PortOwner, service_port: int, port: int) -> None:
        self._owners[port] = owner
        self._held[owner][service_port] = port
        self._used[owner.namespace] += 1
        self._freed.pop(port, None)
        self._freed_by.pop(port, None)

    def _free(self, owner: PortOwner, port: int, now: float) -> None:
        self._drop(owner, port)
        self._freed[port] = now
        self._freed_by[port] = owner.namespace
        self.unwritten.add(port)

    def _check_share(self, namespace: str, now: float) -> None:
        """Refuse one port more to a namespace that has its share. Raises PortsExhausted."""
        if not namespace:
            return
        most, most_quarantined = (max(self._size // part, _LEAST_SHARE) for part in (2, 20))
        quarantined = 0
        if len(self._freed_by) >= most_quarantined:
            quarantined = sum(
                freed_by == namespace and now - self._freed[port] < QUARANTINE
                for port, freed_by in self._freed_by.items()
            )
        if quarantined >= most_quarantined:
            raise PortsExhausted(
                f"namespace {namespace} has freed {quarantined} resolver ports within the last hour, and"
                " each is quarantined for an hour; change the ports of its Services less often"
            )
        if self._used[namespace] + quarantined >= most:
            raise PortsExhausted(
                f"namespace {namespace} has used its share of {most} resolver ports; delete ElastiServices"
                " that are not needed, or spread them over namespaces"
            )

    def _drop(self, owner: PortOwner, port: int) -> None:
        del self._owners[port]
        self._used[owner.namespace] -= 1
        held = self._held[owner]
        del held[next(service_port for service_port, taken in held.items() if taken == port)]

    def _choose(self, name: str, now: float) -> int:
        for port in self._in_order(name):
            if port not in self._owners and port not in self._freed:
                return port
        quarantined = [
            (freed, port) for port, freed in self._freed.items() if now - freed >= QUARANTINE
        ]
        if not quarantined:
            raise PortsExhausted(
                f"no resolver port is free: {len(self._owners)} are in use and {len(self._freed)}"
                f" quarantined for an hour, of {self._size}; delete ElastiServices that are not needed"
            )
        return min(quarantined)[1]

    def _in_order(self, name: str) -> Iterable[int]:
        digest = hashlib.sha256(name.encode()).digest()
        start = int.from_bytes(digest[:8], "big") % self._size
        return (self._first + (start + step) % self._size for step in range(self._size))
