"""What one Service may have of a worker's descriptors: for its clients, and for its pods.

All ports of a Service draw on one allowance, and so does its traffic on the shared port: a Service
with twenty ports is owed no more than one with a single port. Clients and pods are counted apart, so
that held clients can never starve the connections that would serve them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from elasti.resolver.proxy.shares import Share, Shares

if TYPE_CHECKING:
    from collections.abc import Hashable

    from elasti.resolver.proxy.limits import Limits

# One part in so many is kept for Services that have no connections yet.
_ASIDE = 40
# However many ports there are, one part in so many is for connections.
_AT_LEAST = 10


class Allowance:
    """One owner's shares; every user of it closes it once."""

    __slots__ = ("_allowances", "_owner", "clients", "pods", "users")

    def __init__(
        self, allowances: Allowances, owner: Hashable, *, clients: Share, pods: Share
    ) -> None:
        self._allowances = allowances
        self._owner = owner
        self.clients = clients
        self.pods = pods
        self.users = 0

    def close(self) -> None:
        """Give up using it; the last to do so gives the reserve back."""
        self.users -= 1
        if self.users == 0:
            self._allowances.forget(self._owner)
            self.clients.close()
            self.pods.close()


class Allowances:
    """The descriptors of one worker, divided among owners."""

    def __init__(self, limits: Limits) -> None:
        self.clients = Shares(
            capacity=limits.max_clients,
            reserve=limits.reserved_clients,
            aside=limits.max_clients // _ASIDE,
        )
        self.pods = Shares(
            capacity=limits.max_pods,
            reserve=limits.reserved_pods,
            aside=limits.max_pods // _ASIDE,
        )
        self._limits = limits
        self._by_owner: dict[Hashable, Allowance] = {}

    def __repr__(self) -> str:
        return f"<Allowances clients {self.clients!r}, pods {self.pods!r}>"

    def of(self, owner: Hashable) -> Allowance:
        """Return an owner's allowance, the same one for each of its users."""
        allowance = self._by_owner.get(owner)
        if allowance is None:
            clients, pods = self.clients.share(), self.pods.share()
            allowance = Allowance(self, owner, clients=clients, pods=pods)
            self._by_owner[owner] = allowance
        allowance.users += 1
        return allowance

    def leave_for_listening(self, sockets: int) -> None:
        """Take what listening sockets need out of what connections may have."""
        most = self._limits
        clients, pods = most.max_clients - sockets * 2 // 3, most.max_pods - sockets // 3
        self.clients.resize(max(clients, most.max_clients // _AT_LEAST))
        self.pods.resize(max(pods, most.max_pods // _AT_LEAST))

    def forget(self, owner: Hashable) -> None:
        """Remove an owner that nobody speaks for any more."""
        del self._by_owner[owner]
