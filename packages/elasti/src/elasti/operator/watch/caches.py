"""The operator's watches, on every replica: few, whatever the number of ElastiServices."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection

from elasti.api.names import ELASTISERVICES, MANAGED_BY, PRIVATE_LABEL, private_service_name
from elasti.api.types import ElastiService
from elasti.operator.model.findings import lasting_selector
from elasti.operator.model.targets import target_of, workers_of
from elasti.operator.settings import OperatorSettings
from elasti.operator.watch.informer_manager import InformerManager, Scope
from elasti.operator.watch.resolvers import Resolvers
from kubeloop.client.client import Client
from kubeloop.informer import MetricsProvider
from kubeloop.objects.core import MANAGED_BY_LABEL, SERVICES, SLICES, EndpointSlice, Service

BY_SERVICE = "service"
BY_SELECTOR = "selector"
BY_PART = "part"


def index_by_service(endpoint_slice: EndpointSlice) -> list[str]:
    """File slices under the Service that they belong to."""
    return [f"{endpoint_slice.metadata.namespace}/{endpoint_slice.service}"]


def index_by_selector(service: Service) -> list[str]:
    """File a Service under one pair of its selector, by which its pods' labels find it."""
    selector = lasting_selector(service)
    if (service.metadata.labels or {}).get(PRIVATE_LABEL) or not selector:
        return []
    key, value = min(selector.items())
    return [f"{service.metadata.namespace}/{key}={value}"]


def index_by_parts(es: ElastiService) -> list[str]:
    """File an ElastiService under its Service and each of its workloads."""
    workloads = (target_of(es), *workers_of(es))
    parts = (es.spec.service, *(f"{one.kind}/{one.name}" for one in workloads))
    return [f"{es.metadata.namespace}/{part}" for part in parts]


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
                manager, namespace=settings.resolver_namespace, service=settings.resolver_service
            ),
        )
        caches.private_slices.add_indexers({BY_SERVICE: index_by_service})
        caches.services.add_indexers({BY_SELECTOR: index_by_selector})
        if settings.enrolment:
            caches.elastiservices.add_indexers({BY_PART: index_by_parts})
        return caches

    def serves(self, namespace: str, service: str, stopping: Collection[str] = ()) -> bool:
        """Whether a pod behind a Service is ready, as its private Service's slices say, and not one of these."""
        key = f"{namespace}/{private_service_name(service)}"
        found = self.private_slices.by_index(BY_SERVICE, key)
        ready = (endpoint.identity for one in found for endpoint in one.ready_endpoints)
        return any(identity not in stopping for identity in ready)

    def public_name(self, namespace: str, service: str) -> str:
        """Return the public Service that a private one stands beside; else the name itself."""
        found = self.services.find(namespace, service)
        if found is None or not (found.metadata.labels or {}).get(PRIVATE_LABEL):
            return service
        return next((owner.name for owner in found.metadata.owner_references or ()), service)
