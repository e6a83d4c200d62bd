"""Removes what was ours and belongs to no ElastiService any more.

A slice without an ElastiService would send a Service's traffic to a resolver that does not know it;
so what a crash or a renamed `spec.service` leaves behind is looked for, and deleted by its uid. Who has an
ElastiService is read from the cache itself: the directory hears of them one by one, and what it has not
heard of yet, after a start, would seem to belong to nobody.
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

    from elasti.api.types import ElastiService
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
        elastiservices: Scope[ElastiService],
        services: Scope[Service],
        our_slices: Scope[EndpointSlice],
        period: float,
    ) -> None:
        self._client = client
        self._elastiservices = elastiservices
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
        named = {(es.metadata.namespace, es.spec.service) for es in self._elastiservices.all()}
        for piece in self._our_slices.all():
            if (piece.metadata.namespace, piece.service) not in named:
                yield SLICES, piece.metadata
        for service in self._services.all():
            if (service.metadata.labels or {}).get(PRIVATE_LABEL) == "true":
                owners = service.metadata.owner_references or ()
                if not any((service.metadata.namespace, owner.name) in named for owner in owners):
                    yield SERVICES, service.metadata
