"""The lease of an election at a real API server."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from kubeloop.client.client import Client
    from kubeloop.controller.election_thread import LeaseFactory
    from kubeloop.controller.lease import ElectionConfig
    from kubeloop.objects.meta import JsonObject

_LEASES = "coordination.k8s.io/v1/leases"


class ApiLease:
    """One Lease through a client; the client stays the caller's."""

    def __init__(self, client: Client, config: ElectionConfig) -> None:
        self._leases = client.resource(_LEASES, namespace=config.namespace)
        self._name = config.name

    async def get(self) -> JsonObject:
        """Read the lease; raises NotFound where there is none."""
        return await self._leases.get(self._name)

    async def create(self, lease: JsonObject) -> JsonObject:
        """Create it; raises Conflict where somebody was faster."""
        return await self._leases.create(lease)

    async def update(self, lease: JsonObject) -> JsonObject:
        """Replace it; raises Conflict where it changed meanwhile."""
        return await self._leases.replace(lease)


def own_connection(config: ElectionConfig, open_client: Callable[[], Client]) -> LeaseFactory:
    """Return a factory for `ElectionThread`: a client of its own for each election.

    `open_client` (`Client.from_env`, for one) is called on the election's thread, so that neither
    connections nor credentials are shared with the loop of the work.
    """

    @contextlib.asynccontextmanager
    async def connect() -> AsyncIterator[ApiLease]:
        async with open_client() as client:
            yield ApiLease(client, config)

    return connect
