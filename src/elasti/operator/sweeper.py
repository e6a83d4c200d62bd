"""Removes what was ours and belongs to no ElastiService any more.

A slice without an ElastiService would send a Service's traffic to a resolver that does not know it;
so what a crash or a renamed `spec.service` leaves behind is looked for, and deleted by its uid.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from elasti.api.names import PRIVATE_LABEL
from elasti.operator.projections import SERVICES, SLICES
from kubeloop.aio.wait import until
from kubeloop.client.deletion import Preconditions
from kubeloop.client.errors import Conflict, NotFound

if TYPE_CHECKING:
    from collections.abc import Iterator

    from elasti.operator.directory import Directory
    from elasti.operator.informer_manager import Scope
    from elasti.operator.projections import EndpointSlice, Service
    from kubeloop.client.client import Client
    from kubeloop.objects.meta import ObjectMeta

_log = structlog.get_logger(__name__)


class Sweeper:
    """Looks for orphans, from time to time."""

    def __init__(
        self,
        *,
        client: Client,
        directory: Directory,
        services: Scope[Service],
        our_slices: Scope[EndpointSlice],
        period: float,
    ) -> None:
        self._client = client
        self._directory = directory
        self._services = services
        self._our_slices = our_slices
        self._period = period

    async def run(self) -> None:
        """Sweep until cancelled."""
        await until(self.sweep, self._period, jitter=0.1)

    async def sweep(self) -> None:
        """Delete every orphan that there is now. Raises KubeError."""
        for resource, meta in (*self.orphans(),):
            _log.info(
                "orphan is deleted", resource=resource, namespace=meta.namespace, name=meta.name
            )
            try:
                await self._client.resource(resource).delete(
                    meta.name, namespace=meta.namespace, preconditions=Preconditions(uid=meta.uid)
                )
            except (NotFound, Conflict):
                continue

    def orphans(self) -> Iterator[tuple[str, ObjectMeta]]:
        """Iterate over what belongs to nobody."""
        for piece in self._our_slices.all():
            if self._directory.owner(piece.metadata.namespace, piece.service) is None:
                yield SLICES, piece.metadata
        for service in self._services.all():
            if (service.metadata.labels or {}).get(PRIVATE_LABEL) == "true":
                names = [owner.name for owner in service.metadata.owner_references or ()]
                owned = (self._directory.owner(service.metadata.namespace, n) for n in names)
                if not any(owned):
                    yield SERVICES, service.metadata
