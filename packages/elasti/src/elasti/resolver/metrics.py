"""What a worker reports: activity, readiness, metrics as Prometheus text.

Metrics are read from plain counters at the moment of the scrape. They have KubeElasti's names and labels, and
`service` beside them. What a client chooses is not told: labels for it have the Service's name or are empty, and
`status` is the class of the status. So the number of series per Service is fixed, and no client can create one.
The library's own metrics (watches, lists) follow.
"""

from __future__ import annotations

import asyncio
import dataclasses
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

from elasti.api.wire import ActivityReport
from kubeloop.metrics.text import MetricFamily, exposition

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from elasti.resolver.ports.shared_port import SharedPort
    from elasti.resolver.projections import ServiceKey
    from elasti.resolver.services.operators import OperatorClient
    from elasti.resolver.services.registry import ServiceRegistry
    from elasti.resolver.services.service import WakeableService
    from kubeloop.metrics.library import LibraryMetrics


_PREFIX = "elasti_resolver_"
_SERVER_ERROR = 5
# KubeElasti's words in its label `error`; for its calls, no error is no word.
_SUCCESS, _FAILED = "success", "failed"


class Readiness(NamedTuple):
    """Whether a resolver serves, and why not, or what is doubtful although it does."""

    ok: bool
    text: str


class AdminView(Protocol):
    """What the admin port shows."""

    async def activity(self, key: ServiceKey, *, hold: bool | None = None) -> ActivityReport | None:
        """Return what is seen of a Service; None where it has no ElastiService here.

        `hold`: for a while nothing goes to the pods that it has now; False: it does again.
        """

    async def readiness(self) -> Readiness:
        """Return whether this resolver is ready, and what to know about it."""

    async def metrics(self) -> bytes:
        """Return the metrics in Prometheus' text format."""


@dataclasses.dataclass(eq=False, kw_only=True)
class WorkerView:
    """One worker's own view."""

    registry: ServiceRegistry
    shared: SharedPort
    operator: OperatorClient
    unready: Callable[[], str]
    library: LibraryMetrics

    async def activity(self, key: ServiceKey, *, hold: bool | None = None) -> ActivityReport | None:
        """Return what is seen of a Service."""
        service = self.registry.get(key)
        if service is None:
            return None
        if hold is not None:
            service.retire_pods(retired=hold)
        arrived = service.last_arrival
        age = None if arrived is None else asyncio.get_running_loop().time() - arrived
        in_use = service.statistics.in_use
        return ActivityReport(held=service.held, open=in_use, last_arrival_age=age)

    async def readiness(self) -> Readiness:
        """Return whether this worker is ready.

        It is while its watches are doubted: it serves what it knows and reads live what is waited for, and
        other resolvers hear of the cluster from the same API server.
        """
        if why := self.unready():
            return Readiness(ok=False, text=why)
        doubts = self.registry.doubts()
        return Readiness(ok=True, text="\n".join(["ok", *(f"doubted: {d}" for d in doubts)]))

    async def metrics(self) -> bytes:
        """Return the metrics."""
        return exposition((*self.own(), *self.library.families()))

    def own(self) -> Iterable[MetricFamily]:
        """Return the metrics that are not the library's."""
        return *self._ours(), *self._by_service()

    def _ours(self) -> Iterable[MetricFamily]:
        calls = MetricFamily(
            "counter", _PREFIX + "operator_rpc_count", "Wake requests to the operator.", ["error"]
        )
        calls.add(self.operator.answered, "")
        calls.add(self.operator.failed, _FAILED)
        hosts = MetricFamily(
            "counter",
            _PREFIX + "host_extraction_count",
            "Requests on the shared port, by whether their Host named a known Service.",
            ["extractionType", "source", "hostHeader", "error"],
        )
        hosts.add(self.shared.found, "cache-hit", "", "", _SUCCESS)
        hosts.add(self.shared.unknown, "error", "", "", _FAILED)
        services = MetricFamily("gauge", _PREFIX + "services", "Services with an ElastiService.")
        services.add(len(self.registry))
        stages = MetricFamily(
            "histogram",
            "elasti_cold_start_seconds",
            "Seconds of a cold start, by stage: ask, schedule, start and probe here, the others in the"
            " operator.",
            ["stage"],
        )
        for stage, histogram in sorted(self.registry.cold_starts.items()):
            stages.add(histogram, stage)
        return calls, hosts, services, stages

    def _by_service(self) -> Iterable[MetricFamily]:
        families = _ServiceFamilies()
        for service in self.registry:
            families.add(service)
        return vars(families).values()


class _ServiceFamilies:
    """The metrics of Services."""

    def __init__(self) -> None:
        self.queued = _family("gauge", "queued_count", "Connections that wait for a pod.", "source")
        self.switches = _family(
            "counter",
            "traffic_switch_count",
            "Changes of where a Service's traffic goes: enabled means here.",
            "source",
            "enabled",
        )
        self.connections = _family("gauge", "connections", "Open client connections.")
        self.received = _family("counter", "received_bytes", "Bytes from clients.")
        self.sent = _family("counter", "sent_bytes", "Bytes to clients.")
        self.broken = _family("counter", "broken_count", "Answers that pods cut short.")
        self.refused = _family(
            "counter", "refused_count", "Connections that there was no room for."
        )
        self.answers = _family(
            "histogram",
            "incoming_requests",
            "Seconds from a request's head to its answer's, by the class of the status.",
            *("source", "target", "sourceHost", "targetHost", "method", "requestURI"),
            *("status", "error"),
        )
        self.holds = _family(
            "histogram",
            "hold_seconds",
            "Seconds that connections waited for a pod, by the class of the status that they got; `page`: a"
            " browser got the waiting page.",
            "status",
        )

    def add(self, service: WakeableService) -> None:
        """Add the numbers of one Service."""
        key, counted = service.key, service.statistics
        name = key.service
        self.queued.add(service.held, *key, name)
        for enabled, count in service.switches.items():
            self.switches.add(count, *key, name, "enabled" if enabled else "disabled")
        if not (counted.requests or counted.received or counted.refused or counted.connections):
            # No traffic: thousands sleep, and their zeros would be most of the response.
            return
        self.connections.add(counted.connections, *key)
        self.received.add(counted.received, *key)
        self.sent.add(counted.sent, *key)
        self.broken.add(counted.broken, *key)
        self.refused.add(counted.refused, *key)
        for digit, histogram in sorted(counted.answers.items()):
            error = _FAILED if digit == _SERVER_ERROR else _SUCCESS
            self.answers.add(histogram, *key, name, name, name, name, "", "", f"{digit}xx", error)
        for outcome, histogram in sorted(counted.holds.items()):
            self.holds.add(histogram, *key, outcome)


def _family(
    kind: Literal["counter", "gauge", "histogram"], name: str, about: str, *labels: str
) -> MetricFamily:
    return MetricFamily(kind, _PREFIX + name, about, ("namespace", "service", *labels))
