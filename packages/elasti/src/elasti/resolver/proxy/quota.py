"""Fair quotas: bounded descriptors and memory, of which every Service may always have some.

Each holder has a reserved number that no other can take; beyond it holders compete for what is not reserved.
So one of them can take everything that is free, and never another's reserve. A part is kept aside even while
no holder has a claim on it: for holders that come when the rest is taken. Where there are too many holders
for the wanted reserve it is halved for all, and doubled again when half of them have gone. Everything is
counted as it happens; only such a change visits every holder, and there are as many changes as doublings of
their number.

All ports of a Service draw on one quota, and so does its traffic on the shared port: a Service with twenty
ports gets no more than one with a single port. Clients and pods are counted apart, so that held clients can
never starve the connections that would serve them. Memory is counted in pages: what is kept of clients' bytes
while there is no pod for them, or while a request before them is served.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Hashable

    from elasti.resolver.proxy.limits import Limits


# The unit of memory. A connection that is held has one at least, for its objects.
PAGE = 4096


class QuotaShare:
    """One holder's part: `take` before having, `give` after."""

    __slots__ = ("_closed", "_quota", "used")

    def __init__(self, quota: FairQuota) -> None:
        self._quota = quota
        self._closed = False
        self.used = 0

    def take(self, count: int = 1) -> bool:
        """Take some; False where neither the reserve nor the rest has so many left."""
        quota = self._quota
        if quota.used + count > quota.capacity:
            return False
        contended = self.used + count - max(self.used, quota.reserve)
        if contended > 0:
            if quota.contended + contended > quota.free:
                return False
            quota.contended += contended
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
        """Take or give what a connection that has some pages needs for so many bytes.

        Returns how many it has now: as many as before where no more are left.
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


class FairQuota:
    """The whole, and its division. `aside` is kept for holders that are yet to come."""

    __slots__ = (
        "_aside", "_halvings", "_holders", "_wanted", "capacity", "contended", "free", "reserve", "used",
    )  # fmt: skip

    def __init__(self, *, capacity: int, reserve: int, aside: int = 0) -> None:
        self.capacity = capacity
        self.used = 0
        self._wanted = self.reserve = reserve
        self._aside = aside
        self._halvings = 0
        self._holders: set[QuotaShare] = set()
        # How many are neither reserved nor kept aside, and how many of those are in use.
        self.free = capacity - aside
        self.contended = 0

    def __repr__(self) -> str:
        parts = f"{self.reserve} for each of {len(self._holders)}"
        return f"<FairQuota {self.used}/{self.capacity} used, {parts}>"

    def share(self) -> QuotaShare:
        """Add a holder."""
        holder = QuotaShare(self)
        self._holders.add(holder)
        self._divide()
        return holder

    def leave(self, holder: QuotaShare) -> None:
        """Remove a holder that has nothing. Safe to repeat."""
        self._holders.discard(holder)
        self._divide()

    def resize(self, capacity: int) -> None:
        """Change how many there are; where more are taken already, none is until enough came back."""
        self.capacity = capacity
        self._divide()

    def _divide(self) -> None:
        """Halve or double the reserve where the number of holders asks for it."""
        holders, before = len(self._holders), self._halvings
        while self._reserve() * holders > self.capacity:
            self._halvings += 1
        # Twice the room that it takes, so that one who comes and goes does not change it each time.
        while self._halvings and self._fits_doubled(holders):
            self._halvings -= 1
        self.reserve = self._reserve()
        self.free = max(self.capacity - max(self.reserve * holders, self._aside), 0)
        if self._halvings != before:
            self.contended = sum(max(holder.used - self.reserve, 0) for holder in self._holders)

    def _fits_doubled(self, holders: int) -> bool:
        return (self._wanted >> (self._halvings - 1)) * holders * 2 <= self.capacity

    def _reserve(self) -> int:
        return self._wanted >> self._halvings


# One part in so many is kept for Services that have no connections yet.
_ASIDE = 40
# However many ports there are, one part in so many is for connections.
_AT_LEAST = 10


class ServiceQuota:
    """One owner's shares; every user of it closes it once."""

    __slots__ = ("_owner", "_quotas", "clients", "memory", "pods", "users")

    def __init__(self, quotas: ServiceQuotas, owner: Hashable) -> None:
        self._quotas = quotas
        self._owner = owner
        self.clients = quotas.clients.share()
        self.pods = quotas.pods.share()
        self.memory = quotas.memory.share()
        self.users = 0

    def close(self) -> None:
        """Give up using it; the last to do so gives the reserve back."""
        self.users -= 1
        if self.users == 0:
            self._quotas.forget(self._owner)
            self.clients.close()
            self.pods.close()
            self.memory.close()


class ServiceQuotas:
    """The descriptors and the memory of one worker, divided among owners."""

    def __init__(self, limits: Limits) -> None:
        self.clients = FairQuota(
            capacity=limits.max_clients,
            reserve=limits.reserved_clients,
            aside=limits.max_clients // _ASIDE,
        )
        self.pods = FairQuota(
            capacity=limits.max_pods,
            reserve=limits.reserved_pods,
            aside=limits.max_pods // _ASIDE,
        )
        pages = limits.held_memory // PAGE
        self.memory = FairQuota(
            capacity=pages, reserve=limits.reserved_memory // PAGE, aside=pages // _ASIDE
        )
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
