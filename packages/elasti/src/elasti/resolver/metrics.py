"""A worker's reports: activity, readiness, and metrics as Prometheus text.

Metrics are read from plain counters when they are scraped. They have KubeElasti's names and labels, plus
`service`. Client-controlled values are never labels: such labels hold the Service's name or are empty, and
`status` is the class of the status. So each Service has a fixed number of series, and no client can create one.
The library's own metrics (watches, lists) follow.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Iterable
from typing import Literal, NamedTuple, Protocol

from elasti.api.wire import ActivityReport, LastStart
from elasti.resolver.ports.listeners import ServicePortListeners
from elasti.resolver.ports.shared_port import SharedPort
from elasti.resolver.projections import ServiceKey
from elasti.resolver.services.operators import OperatorClient
from elasti.resolver.services.registry import ServiceRegistry
from elasti.resolver.services.service import WakeableService
from kubeloop.metrics.library import LibraryMetrics
from kubeloop.metrics.text import MetricFamily, exposition

_PREFIX = "elasti_resolver_"
_SERVER_ERROR = 5
# Values of KubeElasti's label `error`. Successful operator calls have an empty one.
_SUCCESS, _FAILED = "success", "failed"


class Readiness(NamedTuple):
    """Whether a resolver is ready; the text says why not, or lists watches that may be behind."""

    ok: bool
    text: str


class AdminView(Protocol):
    """The data behind the admin port."""

    async def activity(self, key: ServiceKey, *, hold: bool | None = None) -> ActivityReport | None:
        """Return the activity of a Service; None if it has no ElastiService here.

        `hold=True` sends nothing to its present pods for a while; `hold=False` ends that.
        """

    async def readiness(self) -> Readiness:
        """Return whether this resolver is ready, and details."""

    async def metrics(self) -> bytes:
        """Return the metrics in Prometheus' text format."""


@dataclasses.dataclass(eq=False, kw_only=True)
class WorkerView:
    """The view of one worker."""

    registry: ServiceRegistry
    shared: SharedPort
    listeners: ServicePortListeners
    operator: OperatorClient
    unready: Callable[[], str]
    library: LibraryMetrics
    tracing: Callable[[], Iterable[MetricFamily]] = tuple

    async def activity(self, key: ServiceKey, *, hold: bool | None = None) -> ActivityReport | None:
        """Return the activity of a Service."""
        service = self.registry.get(key)
        if service is None:
            return None
        if hold is not None:
            service.retire_pods(retired=hold)
        arrived = service.last_arrival
        now, took = asyncio.get_running_loop().time(), service.last_start
        age = None if arrived is None else now - arrived
        start = None if took is None else LastStart(took, now - service.started_at)
        return ActivityReport(service.held, service.statistics.in_use, age, start)

    async def readiness(self) -> Readiness:
        """Return whether this worker is ready.

        Watches that may be behind do not make it unready: it serves its cached state and reads the pods live
        that clients wait for. Other resolvers watch the same API server, so they would not know more.
        """
        if why := self.unready():
            return Readiness(ok=False, text=why)
        doubts = self.registry.doubts()
        return Readiness(ok=True, text="\n".join(["ok", *(f"doubted: {d}" for d in doubts)]))

    async def metrics(self) -> bytes:
        """Return the metrics."""
        return exposition((*self.own(), *self.library.families(), *self.tracing()))

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
        contested = MetricFamily(
            "counter",
            _PREFIX + "contested_ports_total",
            "Claims on a resolver port that another Service's status already names. The log names both.",
        )
        contested.add(self.listeners.contested)
        stages = MetricFamily(
            "histogram",
            "elasti_cold_start_seconds",
            "Duration of cold starts, by stage. The resolver measures ask, schedule, start and probe; the"
            " operator measures the others.",
            ["stage"],
        )
        for stage, histogram in sorted(self.registry.cold_starts.items()):
            stages.add(histogram, stage)
        return calls, hosts, services, contested, stages

    def _by_service(self) -> Iterable[MetricFamily]:
        families = _ServiceFamilies()
        for service in self.registry:
            families.add(service)
        return vars(families).values()


class _ServiceFamilies:
    """Metrics by Service."""

    def __init__(self) -> None:
        self.queued = _family("gauge", "queued_count", "Connections waiting for a pod.", "source")
        self.switches = _family(
            "counter",
            "traffic_switch_count",
            "Switches of a Service's traffic. enabled: to the resolver; disabled: to the pods.",
            "source",
            "enabled",
        )
        self.connections = _family("gauge", "connections", "Open client connections.")
        self.received = _family("counter", "received_bytes", "Bytes received from clients.")
        self.sent = _family("counter", "sent_bytes", "Bytes sent to clients.")
        self.broken = _family("counter", "broken_count", "Responses that pods cut short.")
        self.refused = _family("counter", "refused_count", "Connections refused at a limit.")
        self.ignored = _family(
            "counter",
            "ignored_total",
            "Requests that did not wake a sleeping target, by preset, by rule, or `tcp`.",
            "rule",
        )
        self.answers = _family(
            "histogram",
            "incoming_requests",
            "Seconds from a request's head to its response's head, by status class.",
            *("source", "target", "sourceHost", "targetHost", "method", "requestURI"),
            *("status", "error"),
        )
        self.holds = _family(
            "histogram",
            "hold_seconds",
            "Seconds that connections waited for a pod, by the status class of the response. `page`: the"
            " waiting page was shown.",
            "status",
        )
        self.held = MetricFamily(
            "counter",
            "elasti_held_requests_total",
            "Held requests, by outcome: served, timeout, client_gone, overflow or failed.",
            ["namespace", "service", "outcome"],
        )

    def add(self, service: WakeableService) -> None:
        """Add one Service."""
        key, counted = service.key, service.statistics
        name = key.service
        self.queued.add(service.held, *key, name)
        for enabled, count in service.switches.items():
            self.switches.add(count, *key, name, "enabled" if enabled else "disabled")
        for rule, count in sorted(service.ignored.counts.items()):
            self.ignored.add(count, *key, rule)
        if not (counted.requests or counted.received or counted.refused or counted.connections):
            # Thousands may sleep, and their zeros would be most of the response.
            return
        self.connections.add(counted.connections, *key)
        self.received.add(counted.received, *key)
        self.sent.add(counted.sent, *key)
        self.broken.add(counted.broken, *key)
        self.refused.add(counted.refused, *key)
        for digit, histogram in sorted(counted.answers.items()):
            error = _FAILED if digit == _SERVER_ERROR else _SUCCESS
            self.answers.add(histogram, *key, name, name, name, name, "", "", f"{digit}xx", error)
        for status, histogram in sorted(counted.holds.items()):
            self.holds.add(histogram, *key, status)
        for outcome, count in sorted(counted.outcomes.items()):
            self.held.add(count, *key, outcome)


def _family(
    kind: Literal["counter", "gauge", "histogram"], name: str, about: str, *labels: str
) -> MetricFamily:
    return MetricFamily(kind, _PREFIX + name, about, ("namespace", "service", *labels))
