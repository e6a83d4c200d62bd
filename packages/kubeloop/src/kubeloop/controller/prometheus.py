"""kubeloop's measurements as Prometheus metrics; loaded only by programs that want them.

    metrics = PrometheusMetrics(registry)
    factory = SharedInformerFactory(client, metrics=metrics)
    queue = PriorityQueue(metrics=metrics.queue("web"))
    controller = Controller("web", reconcile, queue=queue, metrics=metrics.controller("web"))

Label values are names that the program gave (informers, handlers, queues, controllers) or words from
a fixed set (outcomes, reasons), so the number of series is bounded by the program, never by the
cluster. Children are looked up once, when a part asks for its metrics.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from prometheus_client import Counter, Gauge, Histogram
from prometheus_client.registry import REGISTRY, CollectorRegistry

from kubeloop.controller.reconcile import Outcome

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kubeloop.controller.queue.metrics import QueueMetrics
    from kubeloop.controller.reconcile import ControllerMetrics
    from kubeloop.informer.metrics import InformerMetrics

_SECONDS = (0.001, 0.005, 0.025, 0.1, 0.5, 2.5, 10.0, 60.0)


class PrometheusMetrics:
    """Makes the metrics of informers, queues and controllers in one registry."""

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self._registry = registry
        self._informers = _InformerFamilies(self)
        self._queues = _QueueFamilies(self)
        self._controllers = _ControllerFamilies(self)

    def informer(self, name: str) -> InformerMetrics:
        """Return the metrics of one informer."""
        return _Informer(self._informers, name)

    def queue(self, name: str) -> QueueMetrics:
        """Return the metrics of one queue."""
        return _Queue(self._queues, name)

    def controller(self, name: str) -> ControllerMetrics:
        """Return the metrics of one controller."""
        return _Controller(self._controllers, name)

    def counter(self, name: str, text: str, labels: Sequence[str]) -> Counter:
        """Declare a counter."""
        return Counter(f"kubeloop_{name}", text, labels, registry=self._registry)

    def gauge(self, name: str, text: str, labels: Sequence[str]) -> Gauge:
        """Declare a gauge."""
        return Gauge(f"kubeloop_{name}", text, labels, registry=self._registry)

    def histogram(self, name: str, text: str, labels: Sequence[str]) -> Histogram:
        """Declare a histogram of seconds."""
        full = f"kubeloop_{name}_seconds"
        return Histogram(full, text, labels, registry=self._registry, buckets=_SECONDS)


class _InformerFamilies:
    def __init__(self, make: PrometheusMetrics) -> None:
        one, handler, reason = ("informer",), ("informer", "handler"), ("informer", "reason")
        self.listed = make.histogram(
            "informer_list", "Time from first request to complete list", one
        )
        self.watches = make.counter("informer_watches", "Watches that the server accepted", one)
        self.ended = make.counter("informer_watches_ended", "Watches that ended, by why", reason)
        self.rested = make.counter("informer_backoff_seconds", "Time spent resting", one)
        self.rejected = make.counter(
            "informer_rejected", "Objects that were dropped, by why", reason
        )
        self.queued = make.gauge("informer_queued", "Changes that wait to be applied", one)
        self.applied = make.counter("informer_applied", "Changes that were applied", one)
        self.failed = make.counter(
            "informer_apply_failures", "Entries that could not be applied", one
        )
        self.objects = make.gauge("informer_objects", "Objects in the store", one)
        self.version = make.gauge(
            "informer_version", "resourceVersion that the store has reached", one
        )
        self.pending = make.gauge(
            "informer_pending", "Notifications that wait for a handler", handler
        )
        self.handled = make.counter(
            "informer_handled", "Notifications that a handler took", handler
        )
        self.handling = make.counter("informer_handling_seconds", "Time a handler took", handler)
        self.raised = make.counter("informer_handler_failures", "Exceptions of a handler", handler)


class _Informer:
    """The metrics of one informer; see `InformerMetrics` for what each call means."""

    def __init__(self, families: _InformerFamilies, name: str) -> None:
        self._families = families
        self._name = name
        self._listed = families.listed.labels(name)
        self._watches = families.watches.labels(name)
        self._rested = families.rested.labels(name)
        self._queued = families.queued.labels(name)
        self._applied = families.applied.labels(name)
        self._failed = families.failed.labels(name)
        self._objects = families.objects.labels(name)
        self._version = families.version.labels(name)

    def listed(self, *, items: int, seconds: float) -> None:
        del items  # the store's size says it
        self._listed.observe(seconds)

    def watch_opened(self) -> None:
        self._watches.inc()

    def watch_ended(self, *, reason: str) -> None:
        self._families.ended.labels(self._name, reason).inc()

    def backed_off(self, *, seconds: float) -> None:
        self._rested.inc(seconds)

    def rejected(self, *, reason: str) -> None:
        self._families.rejected.labels(self._name, reason).inc()

    def queued(self, *, changes: int) -> None:
        self._queued.set(changes)

    def applied(self, *, changes: int, seconds: float) -> None:
        del seconds  # once a batch: a rate of changes is what people look at
        self._applied.inc(changes)

    def apply_failed(self) -> None:
        self._failed.inc()

    def stored(self, *, objects: int, version: str) -> None:
        self._objects.set(objects)
        with contextlib.suppress(ValueError):  # versions are opaque; where one is a number, show it
            self._version.set(float(version))

    def pending(self, *, handler: str, notifications: int) -> None:
        self._families.pending.labels(self._name, handler).set(notifications)

    def handled(self, *, handler: str, notifications: int, seconds: float) -> None:
        self._families.handled.labels(self._name, handler).inc(notifications)
        self._families.handling.labels(self._name, handler).inc(seconds)

    def handler_failed(self, *, handler: str) -> None:
        self._families.raised.labels(self._name, handler).inc()


class _QueueFamilies:
    def __init__(self, make: PrometheusMetrics) -> None:
        one = ("queue",)
        self.depth = make.gauge("queue_depth", "Items that are ready to be taken", one)
        self.adds = make.counter("queue_adds", "Items that were added", one)
        self.waited = make.histogram("queue_wait", "How long items were ready", one)
        self.worked = make.histogram("queue_work", "How long items were worked on", one)
        self.unfinished = make.gauge("queue_unfinished_seconds", "Age of all running items", one)
        self.longest = make.gauge("queue_longest_seconds", "Age of the oldest running item", one)
        self.retries = make.counter("queue_retries", "Delayed and rate-limited adds", one)


class _Queue:
    """The metrics of one queue; see `QueueMetrics`."""

    def __init__(self, families: _QueueFamilies, name: str) -> None:
        self._depth = families.depth.labels(name)
        self._adds = families.adds.labels(name)
        self._waited = families.waited.labels(name)
        self._worked = families.worked.labels(name)
        self._unfinished = families.unfinished.labels(name)
        self._longest = families.longest.labels(name)
        self._retries = families.retries.labels(name)

    def depth(self, items: int) -> None:
        self._depth.set(items)

    def added(self) -> None:
        self._adds.inc()

    def waited(self, seconds: float) -> None:
        self._waited.observe(seconds)

    def worked(self, seconds: float) -> None:
        self._worked.observe(seconds)

    def running(self, unfinished_seconds: float, longest_seconds: float) -> None:
        self._unfinished.set(unfinished_seconds)
        self._longest.set(longest_seconds)

    def retried(self) -> None:
        self._retries.inc()


class _ControllerFamilies:
    def __init__(self, make: PrometheusMetrics) -> None:
        by_outcome = ("controller", "outcome")
        self.turns = make.counter(
            "controller_reconciles", "Reconciles, by how they ended", by_outcome
        )
        self.seconds = make.histogram("controller_reconcile", "How long they took", ("controller",))
        self.busy = make.gauge("controller_busy", "Workers that are reconciling", ("controller",))


class _Controller:
    """The metrics of one controller; see `ControllerMetrics`."""

    def __init__(self, families: _ControllerFamilies, name: str) -> None:
        self._turns = {outcome: families.turns.labels(name, outcome.value) for outcome in Outcome}
        self._seconds = families.seconds.labels(name)
        self._busy = families.busy.labels(name)

    def reconciled(self, outcome: Outcome, seconds: float) -> None:
        self._turns[outcome].inc()
        self._seconds.observe(seconds)

    def busy(self, workers: int) -> None:
        self._busy.set(workers)
