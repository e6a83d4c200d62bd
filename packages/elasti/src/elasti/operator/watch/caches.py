"""What the operator watches, on every replica: few watches, whatever the number of ElastiServices."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from elasti.api.names import ELASTISERVICES, MANAGED_BY, PRIVATE_LABEL
from elasti.api.types import ElastiService
from elasti.operator.watch.informer_manager import InformerManager, Scope
from elasti.operator.watch.resolvers import Resolvers
from kubeloop.objects.core import MANAGED_BY_LABEL, SERVICES, SLICES, EndpointSlice, Service

if TYPE_CHECKING:
    from elasti.operator.settings import OperatorSettings
    from kubeloop.client.client import Client
    from kubeloop.informer import MetricsProvider

BY_SERVICE = "service"
BY_SELECTOR = "selector"


def index_by_service(endpoint_slice: EndpointSlice) -> list[str]:
    """File slices under the Service that they belong to."""
    return [f"{endpoint_slice.metadata.namespace}/{endpoint_slice.service}"]


def index_by_selector(service: Service) -> list[str]:
    """File a Service under one pair of its selector, by which its pods' labels find it."""
    if (service.metadata.labels or {}).get(PRIVATE_LABEL) or not service.spec.selector:
        return []
    key, value = min(service.spec.selector.items())
    return [f"{service.metadata.namespace}/{key}={value}"]


@dataclasses.dataclass(frozen=True, slots=True)
class OperatorCaches:
    """The watched kinds; each target kind comes with its first ElastiService."""

    manager: InformerManager
    elastiservices: Scope[ElastiService]
    services: Scope[Service]
    private_slices: Scope[EndpointSlice]
    our_slices: Scope[EndpointSlice]
    resolvers: Resolvers

    @classmethod
    def of(
        cls, client: Client, settings: OperatorSettings, metrics: MetricsProvider | None = None
    ) -> OperatorCaches:
        """Make them; the manager runs them."""
        manager = InformerManager(
            client,
            namespaces=settings.watch_namespaces,
            resync=settings.informer_resync,
            health_period=settings.informer_health_period,
            stuck_after=settings.informer_stuck_after,
            metrics=metrics,
        )
        caches = cls(
            manager,
            manager.scope(
                ELASTISERVICES,
                ElastiService,
                transform=lambda es: es.with_default_triggers(
                    settings.default_triggers, settings.vetoes
                ),
            ),
            manager.scope(SERVICES, Service),
            manager.scope(SLICES, EndpointSlice, label_selector=f"{PRIVATE_LABEL}=true"),
            manager.scope(SLICES, EndpointSlice, label_selector=f"{MANAGED_BY_LABEL}={MANAGED_BY}"),
            Resolvers(
                manager,
                namespace=settings.resolver_namespace,
                service=settings.resolver_service,
            ),
        )
        caches.private_slices.add_indexers({BY_SERVICE: index_by_service})
        caches.services.add_indexers({BY_SELECTOR: index_by_selector})
        return caches

    def public_name(self, namespace: str, service: str) -> str:
        """Return the public Service that a private one stands beside; else the name itself."""
        found = self.services.find(namespace, service)
        if found is None or not (found.metadata.labels or {}).get(PRIVATE_LABEL):
            return service
        return next((owner.name for owner in found.metadata.owner_references or ()), service)
