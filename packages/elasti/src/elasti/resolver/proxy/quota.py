"""Fair quotas: bounded descriptors and memory, of which every Service may always have some.

Every Service with a port here is a holder, from the day its port is bound and not from its first connection: each has
a reserve that no other can take, so a Service that sleeps can always be woken. Beyond their reserves holders compete
for the rest. All reserves together are at most half of the whole: if there are too many holders for the wanted
reserve it is halved for all, and doubled again when half of them have gone.

When the rest is taken, a holder that asks for more and has less than half of what the largest holder has makes that one
shed connections: its youngest that no pod serves; otherwise the next largest does. A small part is kept aside for
this, since a connection that ends gives its descriptor back a moment later. So one holder can take everything that is
free, but not keep it from others. A holder that comes later has its reserve, too: the largest sheds what that takes.

Everything is counted as it happens. Only a change of the reserve visits every holder, and so does the search for the
largest holder after it has lost half of what it had.

All ports of a Service draw on one quota, and so does its traffic on the shared port: a Service with twenty
ports gets no more than one with a single port. Clients and pods are counted apart, so that held clients can
never starve the connections that would serve them. Memory is counted in pages: the bytes of clients that are kept
while there is no pod for them, or while a request before them is served.

One client may have many connections, but not all of a worker's: `ClientAddresses` counts them. IPv6 clients count by
their /64, which is what a single host gets; IPv4 addresses that were mapped into IPv6 count as IPv4. Addresses of
ingresses and other proxies stand for many clients: their networks are exempt.
"""

from __future__ import annotations

import functools
import ipaddress
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from elasti.resolver.proxy.limits import Limits

    # Ends the youngest connection that no pod serves; returns whether there was one.
    Shed: TypeAlias = Callable[[], bool]


Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network

_REMEMBERED = 4096
"""Addresses whose key is kept."""
# The unit of memory. A connection that is held has one at least, for its objects.
PAGE = 4096
# How many connections may end to make room for one: some keep a single page, others sixteen.
_MOST_SHED = 16
# How many holders are asked in turn, and after how many calls those that had nothing to shed are asked again.
_MOST_ASKED = 3
_ASKED_AGAIN = 64


class QuotaShare:
    """One holder's part: `take` before having, `give` after."""

    __slots__ = ("_closed", "_quota", "shed", "used")

    def __init__(self, quota: FairQuota, shed: Shed) -> None:
        self._quota = quota
        self._closed = False
        self.shed = shed
        self.used = 0

    def take(self, count: int = 1) -> bool:
        """Take some; False if neither the reserve nor the rest has enough left, or can get it."""
        quota = self._quota
        contended = self.used + count - max(self.used, quota.reserve)
        if contended > 0:
            if quota.contended + contended > quota.free and not quota.make_room(self, contended):
                return False
            if quota.used + count > quota.capacity:
                return False
            quota.contended += contended
            if self.used + count > quota.largest.used:
                quota.largest = self
        elif quota.used + count > quota.capacity:
            # There is less than there was; what the largest sheds now is there for the next.
            quota.reclaim()
            return False
        self.used += count
        quota.used += count
        return True

    def give(self, count: int = 1) -> None:
        """Give some back."""
        assert self.used >= count
        quota = self._quota
        contended = self.used - max(self.used - count, quota.reserve)
        if contended > 0:
            quota.contended -= contended
        self.used -= count
        quota.used -= count
        if self._closed and self.used == 0:
            quota.leave(self)

    def resize(self, pages: int, kept: int) -> int:
        """Take or give back the pages that a connection needs for that many bytes.

        Returns how many it has now: as many as before if none are left.
        """
        wanted = -(-kept // PAGE)
        if wanted > pages:
            return wanted if self.take(wanted - pages) else pages
        if wanted < pages:
            self.give(pages - wanted)
        return wanted

    def close(self) -> None:
        """Leave, once everything is given back."""
        self._closed = True
        if self.used == 0:
            self._quota.leave(self)


def _shed_nothing() -> bool:
    return False


class FairQuota:
    """The whole, and its division. `aside` is for holders that wait for others to shed connections."""

    __slots__ = (
        "_aside", "_barren", "_calls", "_halvings", "_holders", "_peak", "_wanted", "capacity", "contended", "free", "largest",
        "reserve", "used",
    )  # fmt: skip

    def __init__(self, *, capacity: int, reserve: int, aside: int = 0) -> None:
        self.capacity = capacity
        self.used = 0
        self._wanted = self.reserve = reserve
        self._aside = aside
        self._halvings = 0
        self._holders: set[QuotaShare] = set()
        # The holder that had the most when it was last looked for, and how many it had.
        self.largest = QuotaShare(self, _shed_nothing)
        self._peak = 0
        # Holders that had nothing to shed when they were last asked.
        self._barren: set[QuotaShare] = set()
        self._calls = 0
        # How many are neither reserved nor kept aside, and how many of those are in use.
        self.free = capacity - aside
        self.contended = 0

    def __repr__(self) -> str:
        parts = f"{self.reserve} for each of {len(self._holders)}"
        return f"<FairQuota {self.used}/{self.capacity} used, {parts}>"

    def share(self, shed: Shed = _shed_nothing) -> QuotaShare:
        """Add a holder; `shed` is called when others need what it has."""
        holder = QuotaShare(self, shed)
        self._holders.add(holder)
        self._divide()
        self.reclaim()
        return holder

    def leave(self, holder: QuotaShare) -> None:
        """Remove a holder that has nothing. Safe to repeat."""
        self._holders.discard(holder)
        self._barren.discard(holder)
        self._divide()

    def resize(self, capacity: int) -> None:
        """Change how many there are; if more are taken already, none is until enough came back."""
        self.capacity = capacity
        self._divide()
        self.reclaim()

    def reclaim(self) -> None:
        """Make the largest holders shed what reserves now take of the rest, a reserve's worth at a time."""
        excess = self.contended - self.free - self._aside
        for _ in range(min(excess, max(self.reserve, 1))):
            if not self._shed_largest(0):
                return

    def make_room(self, holder: QuotaShare, wanted: int) -> bool:
        """Make the largest holder shed connections for one that has less than half as much."""
        most, shed = self.free + self._aside - wanted, 0
        if self.contended > most:
            self.reclaim()
        while shed < min(wanted, _MOST_SHED) and self.contended <= most:
            count = self._shed_largest(2 * (holder.used + wanted))
            if not count:
                break
            shed += count
        return shed > 0 and self.contended <= most

    def _shed_largest(self, least: int) -> int:
        """Make the largest holder that can, of those with at least that many, shed; returns how many it shed."""
        self._calls += 1
        if self._calls % _ASKED_AGAIN == 0 and self._barren:
            self._barren.clear()
            self._peak = self.largest.used * 2 + 1
        for _ in range(_MOST_ASKED):
            largest = self._largest()
            before = largest.used
            if before < max(least, 1) or largest in self._barren:
                return 0
            if largest.shed():
                # Descriptors come back a moment later, memory at once.
                return max(before - largest.used, 1)
            self._barren.add(largest)
            self._peak = before * 2 + 1
        return 0

    def _largest(self) -> QuotaShare:
        """Return the holder with the most that was not found to have nothing to shed."""
        self._peak = max(self._peak, self.largest.used)
        if self.largest.used * 2 < self._peak:
            able = self._holders - self._barren or self._holders
            self.largest = max(able, key=lambda holder: holder.used, default=self.largest)
            self._peak = self.largest.used
        return self.largest

    def _divide(self) -> None:
        """Halve or double the reserve if the number of holders asks for it."""
        holders, before = len(self._holders), self._halvings
        while self._reserve() * holders > self._reservable(self._reserve()):
            self._halvings += 1
        # Twice the room that it takes, so that one who comes and goes does not change it each time.
        while self._halvings and self._fits_doubled(holders):
            self._halvings -= 1
        self.reserve = self._reserve()
        self.free = max(self.capacity - self.reserve * holders - self._aside, 0)
        if self._halvings != before:
            self.contended = sum(max(holder.used - self.reserve, 0) for holder in self._holders)

    def _fits_doubled(self, holders: int) -> bool:
        doubled = self._wanted >> (self._halvings - 1)
        return doubled * holders * 2 <= self._reservable(doubled)

    def _reservable(self, reserve: int) -> int:
        """How many may be reserved: half, so that busy Services have the rest; all if it is one for each."""
        most = max(self.capacity - self._aside, 0)
        return most // 2 if reserve > 1 else most

    def _reserve(self) -> int:
        return self._wanted >> self._halvings


# One part in this many is kept for Services that wait for others to shed connections.
_ASIDE = 40
# However many ports there are, one part in this many is for connections.
_AT_LEAST = 10


class ServiceQuota:
    """One owner's shares; every user of it closes it once."""

    __slots__ = ("_owner", "_quotas", "clients", "memory", "pods", "sheds", "users")

    def __init__(self, quotas: ServiceQuotas, owner: Hashable) -> None:
        self._quotas = quotas
        self._owner = owner
        # One for each port handler.
        self.sheds: list[Callable[[bool], bool]] = []
        self.clients = quotas.clients.share(lambda: self._shed(memory=False))
        self.pods = quotas.pods.share()
        self.memory = quotas.memory.share(lambda: self._shed(memory=True))
        self.users = 0

    def close(self) -> None:
        """Give up using it; the last to do so gives the reserve back."""
        self.users -= 1
        if self.users == 0:
            self._quotas.forget(self._owner)
            self.clients.close()
            self.pods.close()
            self.memory.close()

    def _shed(self, *, memory: bool) -> bool:
        return any(shed(memory) for shed in self.sheds)


class ServiceQuotas:
    """The descriptors and the memory of one worker, divided among owners."""

    def __init__(self, limits: Limits) -> None:
        self.clients = _divided(limits.max_clients, limits.reserved_clients)
        self.pods = _divided(limits.max_pods, limits.reserved_pods)
        self.memory = _divided(limits.held_memory // PAGE, limits.reserved_memory // PAGE)
        self._limits = limits
        self._by_owner: dict[Hashable, ServiceQuota] = {}

    def __repr__(self) -> str:
        return (
            f"<ServiceQuotas clients {self.clients!r}, pods {self.pods!r}, pages {self.memory!r}>"
        )

    def of(self, owner: Hashable) -> ServiceQuota:
        """Return an owner's quota, the same one for each of its users."""
        quota = self._by_owner.get(owner)
        if quota is None:
            quota = self._by_owner[owner] = ServiceQuota(self, owner)
        quota.users += 1
        return quota

    def leave_for_listening(self, sockets: int) -> None:
        """Take what listening sockets need out of what connections may have."""
        most = self._limits
        clients, pods = most.max_clients - sockets * 2 // 3, most.max_pods - sockets // 3
        self.clients.resize(max(clients, most.max_clients // _AT_LEAST))
        self.pods.resize(max(pods, most.max_pods // _AT_LEAST))

    def forget(self, owner: Hashable) -> None:
        """Remove an owner without users."""
        del self._by_owner[owner]


def _divided(capacity: int, reserve: int) -> FairQuota:
    return FairQuota(capacity=capacity, reserve=reserve, aside=capacity // _ASIDE)


# Client addresses


class ClientAddresses:
    """Counts connections by address. An empty key stands for one that is not counted."""

    __slots__ = ("_counts", "_exempt", "_key", "_most")

    def __init__(self, *, most: int, exempt: Sequence[Network] = ()) -> None:
        self._most = most
        self._exempt = exempt
        self._counts: dict[str, int] = {}
        self._key = functools.lru_cache(maxsize=_REMEMBERED)(self._key_of)

    def __repr__(self) -> str:
        return f"<ClientAddresses {len(self._counts)} addresses, at most {self._most} each>"

    def is_full(self, address: str) -> bool:
        """Whether an address has as many connections as it may."""
        return self._counts.get(self._key(address), 0) >= self._most

    def add(self, address: str) -> str:
        """Count a connection; returns the key for `remove`."""
        key = self._key(address)
        if key:
            self._counts[key] = self._counts.get(key, 0) + 1
        return key

    def remove(self, key: str) -> None:
        """Stop counting a connection."""
        if key:
            left = self._counts[key] - 1
            if left:
                self._counts[key] = left
            else:
                del self._counts[key]

    def _key_of(self, address: str) -> str:
        try:
            found = ipaddress.ip_address(address.partition("%")[0])
        except ValueError:
            return ""
        if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped is not None:
            found = found.ipv4_mapped
        if any(found in network for network in self._exempt):
            return ""
        if isinstance(found, ipaddress.IPv4Address):
            return str(found)
        return str(ipaddress.IPv6Network((found, 64), strict=False))
