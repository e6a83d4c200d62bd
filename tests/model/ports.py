"""Every order of claims of two Services for one resolver port, with the resolver's own `PortClaims`.

Invariants: `NoPortOfAnotherService`: while nodes may send the traffic of one Service to a port, the port is not
another's; `OpenWhileNodesSend`: it is open for that Service, unless the other claims it, too;
`OwnerKeepsItsPort`: the Service that has it keeps it while its status names it. Here the operator points a slice at a port only once the resolver has given it to that Service, as its probe of the port sees
to; and a status may name any port at any time, since others may write it.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import NamedTuple

from elasti.resolver.ports.claims import PortClaim, PortClaims
from elasti.resolver.projections import ServiceKey
from elasti.resolver.proxy.upstream.interface import PortProtocol
from tests.model.leader import Broken

PORT = 20000
SETTLE = 10.0
SERVICES = (ServiceKey("shop", "web"), ServiceKey("shop", "api"))
BOTH = range(len(SERVICES))


class Ports(NamedTuple):
    """What is written, what nodes may still do, and what the resolver makes of it."""

    claims: PortClaims
    named: tuple[bool, bool] = (False, False)
    pointing: tuple[bool, bool] = (False, False)
    #: Its slice pointed there until a moment ago: nodes that are behind still do.
    behind: tuple[bool, bool] = (False, False)
    owner: int | None = None
    now: float = 0.0


def search(depth: int) -> int:
    """Return how many states there are to a depth. Raises Broken."""
    first = Ports(PortClaims(settle=SETTLE))
    seen, frontier = {_key(first)}, [first]
    for _ in range(depth):
        following = []
        for ports in frontier:
            for after in events(ports):
                check(after)
                owner = ports.owner
                if owner is not None and after.named[owner] and after.owner != owner:
                    raise Broken("OwnerKeepsItsPort", f"{SERVICES[owner]} loses it: {after}")
                if (key := _key(after)) not in seen:
                    seen.add(key)
                    following.append(after)
        frontier = following
    return len(seen)


def events(ports: Ports) -> Iterator[Ports]:
    """Return what may follow."""
    for one in BOTH:
        yield _written(ports, one, named=not ports.named[one])
        if ports.pointing[one] or (ports.owner == one and ports.named[one]):
            yield _written(ports, one, pointing=not ports.pointing[one])
    if any(ports.behind):
        yield _decided(ports._replace(behind=(False, False), now=ports.now + SETTLE), ports.claims)


def _written(
    ports: Ports, one: int, *, named: bool | None = None, pointing: bool | None = None
) -> Ports:
    claims, key = copy.deepcopy(ports.claims), SERVICES[one]
    names = ports.named if named is None else _with(ports.named, one, named)
    points = ports.pointing if pointing is None else _with(ports.pointing, one, pointing)
    ceased = ports.pointing[one] and not points[one]
    behind = _with(ports.behind, one, ceased or (ports.behind[one] and not points[one]))
    claims.publish(key, frozenset({PORT} if points[one] else ()), now=ports.now)
    # The first is the older one.
    claim = PortClaim(
        key=key, port_name="", protocol=PortProtocol.HTTP, age=(str(one), ""), reported=names[one]
    )
    claims.claim(key, {PORT: claim} if names[one] or points[one] else {})
    changed = ports._replace(named=names, pointing=points, behind=behind)
    return _decided(changed, claims)


def _with(pair: tuple[bool, bool], one: int, value: bool) -> tuple[bool, bool]:
    return (value, pair[1]) if one == 0 else (pair[0], value)


def _decided(ports: Ports, claims: PortClaims) -> Ports:
    claims = copy.deepcopy(claims)
    claim = claims.decide(PORT, now=ports.now).claim
    owner = None if claim is None else SERVICES.index(claim.key)
    return ports._replace(claims=claims, owner=owner)


def check(ports: Ports) -> None:
    """Raise Broken if a Service's traffic may reach another."""
    for one in BOTH:
        sends = ports.pointing[one] or ports.behind[one]
        if sends and ports.owner not in (None, one):
            what = f"traffic of {SERVICES[one]} reaches {SERVICES[1 - one]}"
            raise Broken("NoPortOfAnotherService", f"{what}: {ports}")
        other = 1 - one
        claimed = ports.named[other] or ports.pointing[other] or ports.behind[other]
        if sends and ports.owner is None and not claimed:
            raise Broken("OpenWhileNodesSend", f"{SERVICES[one]} is refused: {ports}")


def _key(ports: Ports) -> str:
    found = ports.claims
    owns = [sorted(map(str, each)) for each in (found._claims.get(PORT, ()), found._left)]
    ceased = sorted(map(str, found._ceased.get(PORT, ())))
    reporting = sorted(map(str, found._reporting.get(PORT, ())))
    reported = {str(key): claim.reported for key, claim in found._claims.get(PORT, {}).items()}
    parts = (owns, ceased, reporting, sorted(reported.items()), str(found._owners.get(PORT)))
    return repr((ports.named, ports.pointing, ports.behind, ports.owner, parts))
