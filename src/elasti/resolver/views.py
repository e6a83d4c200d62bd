"""What a worker tells about itself: activity, readiness, metrics.

Metrics are read from plain counters at the moment somebody asks. Labels are namespace, Service and
the class of the status, so there are never more series than Services; no client can make one.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import TYPE_CHECKING, Protocol

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from elasti.api.wire import ActivityReport

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from elasti.resolver.listeners import Listeners
    from elasti.resolver.objects import ServiceKey
    from elasti.resolver.operator_client import Client
    from elasti.resolver.proxy.statistics import Statistics
    from elasti.resolver.services import Registry
    from elasti.resolver.shared import SharedPort

_LABELS = ("namespace", "service")


class View(Protocol):
    """What the admin port shows."""

    async def activity(self, key: ServiceKey) -> ActivityReport | None:
        """Return what is seen of a Service; None where it has no ElastiService here."""

    async def unready(self) -> str:
        """Return why this resolver is not ready; empty where it is."""

    async def metrics(self) -> bytes:
        """Return the metrics in Prometheus' text format."""


class WorkerView:
    """One worker's own view."""

    def __init__(
        self,
        *,
        registry: Registry,
        listeners: Listeners,
        shared: SharedPort,
        operator: Client,
        unready: Callable[[], str],
    ) -> None:
        self._registry = registry
        self._listeners = listeners
        self._shared = shared
        self._operator = operator
        self._unready = unready
        self._collectors = CollectorRegistry(auto_describe=False)
        self._collectors.register(self)

    async def activity(self, key: ServiceKey) -> ActivityReport | None:
        """Return what is seen of a Service."""
        service = self._registry.get(key)
        if service is None:
            return None
        arrived = service.last_arrival
        age = None if arrived is None else asyncio.get_running_loop().time() - arrived
        in_use = sum(s.in_use for owner, s in self._statistics() if owner == key)
        return ActivityReport(held=service.held, open=in_use, last_arrival_age=age)

    async def unready(self) -> str:
        """Return why this worker is not ready."""
        return self._unready()

    async def metrics(self) -> bytes:
        """Return the metrics."""
        return generate_latest(self._collectors)

    def collect(self) -> Iterable[CounterMetricFamily | GaugeMetricFamily]:
        """Read the counters (prometheus-client's collector)."""
        yield self._queued()
        yield from self._traffic()
        rpc = CounterMetricFamily(
            "elasti_resolver_operator_rpc_count", "Wake requests to the operator.", labels=["error"]
        )
        rpc.add_metric(["false"], self._operator.answered)
        rpc.add_metric(["true"], self._operator.failed)
        yield rpc
        hosts = CounterMetricFamily(
            "elasti_resolver_host_extraction_count",
            "Requests on the shared port, by whether their Host named a known Service.",
            labels=["error"],
        )
        hosts.add_metric(["false"], self._shared.found)
        hosts.add_metric(["true"], self._shared.unknown)
        yield hosts
        yield GaugeMetricFamily(
            "elasti_resolver_services", "Services with an ElastiService.", len(self._registry)
        )

    def _queued(self) -> GaugeMetricFamily:
        queued = GaugeMetricFamily(
            "elasti_resolver_queued_count", "Connections that wait for a pod.", labels=_LABELS
        )
        for service in self._registry:
            queued.add_metric(service.key, service.held)
        return queued

    def _traffic(self) -> Iterable[CounterMetricFamily | GaugeMetricFamily]:
        summed: dict[ServiceKey, list[Statistics]] = defaultdict(list)
        for key, statistics in self._statistics():
            summed[key].append(statistics)
        connections = GaugeMetricFamily(
            "elasti_resolver_connections", "Open client connections.", labels=_LABELS
        )
        requests = CounterMetricFamily(
            "elasti_resolver_incoming_requests",
            "Final responses by the class of their status.",
            labels=(*_LABELS, "status"),
        )
        received = CounterMetricFamily(
            "elasti_resolver_received_bytes", "Bytes from clients.", labels=_LABELS
        )
        sent = CounterMetricFamily(
            "elasti_resolver_sent_bytes", "Bytes to clients.", labels=_LABELS
        )
        for key, all_of_it in summed.items():
            connections.add_metric(key, sum(s.connections for s in all_of_it))
            received.add_metric(key, sum(s.received for s in all_of_it))
            sent.add_metric(key, sum(s.sent for s in all_of_it))
            for digit in range(1, 6):
                count = sum(s.by_class[digit] for s in all_of_it)
                if count:
                    requests.add_metric((*key, f"{digit}xx"), count)
        return (connections, requests, received, sent)

    def _statistics(self) -> Iterable[tuple[ServiceKey, Statistics]]:
        for key, front in self._listeners.fronts():
            yield key, front.statistics
        for key, front in self._shared.fronts():
            yield key, front.statistics
