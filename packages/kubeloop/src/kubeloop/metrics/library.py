"""The library's own metrics, under the names of client-go and controller-runtime.

    metrics = LibraryMetrics()
    factory = SharedInformerFactory(client, metrics=metrics)
    queue = PriorityQueue(metrics=metrics.queue("web"))
    controller = Controller("web", reconcile, queue=queue, metrics=metrics.controller("web"))
    HealthServer(checks, metrics=lambda: exposition(metrics.families()))

Label values are names that the program gave (informers, handlers, queues, controllers) or words from
a fixed set (results, reasons), so the number of series is bounded by the program, never by the
cluster. Counting is an addition to a plain number; names and labels come in only at a scrape.
"""

from __future__ import annotations

import contextlib
import enum
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, cast

from kubeloop.metrics.text import Histogram, MetricFamily, MetricKind

# client-go's and controller-runtime's, thinned out: every bound is a series.
_QUEUE_BOUNDS = (0.001, 0.005, 0.025, 0.1, 0.5, 2.5, 10.0, 60.0)
_RECONCILE_BOUNDS = (0.005, 0.025, 0.1, 0.5, 1.0, 5.0, 20.0, 60.0)
_LIST_BOUNDS = (0.01, 0.1, 0.5, 2.5, 10.0, 60.0)


class _Metric(NamedTuple):
    """A metric and the attribute that counts it: a number, a histogram, or those by a second label."""

    kind: MetricKind
    name: str
    attribute: str
    about: str
    by: str = ""


def _table(text: str) -> tuple[_Metric, ...]:
    """Read rows of kind, name, attribute and help; a second label follows its attribute in brackets."""
    found = []
    for row in text.strip().splitlines():
        kind, name, counted, about = row.split(maxsplit=3)
        attribute, _, by = counted.removesuffix("]").partition("[")
        found.append(_Metric(cast("MetricKind", kind), name, attribute, about, by))
    return tuple(found)


_QUEUES = _table("""
gauge     workqueue_depth                             items      Items ready to be taken.
counter   workqueue_adds_total                        adds       Items added.
counter   workqueue_retries_total                     retries    Delayed and rate-limited adds.
histogram workqueue_queue_duration_seconds            waits      Seconds that items waited in the queue.
histogram workqueue_work_duration_seconds             works      Seconds that items were processed.
gauge     workqueue_unfinished_work_seconds           unfinished Seconds of work in progress, summed over items.
gauge     workqueue_longest_running_processor_seconds longest    Seconds that the oldest item in progress has taken.
""")
_CONTROLLERS = _table("""
counter   controller_runtime_reconcile_total        outcomes[result] Reconciles, by result.
histogram controller_runtime_reconcile_time_seconds seconds          Duration of reconciles in seconds.
gauge     controller_runtime_active_workers         workers          Workers in use.
""")
_WEBHOOKS = _table("""
counter   controller_runtime_webhook_requests_total  codes[code] Reviews, by status code.
histogram controller_runtime_webhook_latency_seconds seconds     Duration of reviews in seconds.
""")
_INFORMERS = _table("""
histogram reflector_list_duration_seconds      lists                    Duration of complete lists.
counter   reflector_watches_total              watches                  Watches opened.
counter   reflector_watches_ended_total        ended[reason]            Watches that ended, by reason.
gauge     reflector_watch_doubted              doubted                  1 while the store may be behind.
counter   reflector_backoff_seconds_total      backoff                  Seconds spent in backoff.
gauge     reflector_last_resource_version      version                  resourceVersion of the store.
gauge     informer_objects                     objects                  Objects in the store.
gauge     informer_queued_changes              waiting                  Changes waiting to be applied.
counter   informer_applied_changes_total       changes                  Changes applied.
counter   informer_apply_errors_total          apply_errors             Entries that could not be applied.
counter   informer_rejected_objects_total      rejections[reason]       Objects dropped.
gauge     informer_handler_pending             backlog[handler]         Notifications waiting.
counter   informer_handler_notifications_total notifications[handler]   Notifications handled.
counter   informer_handler_seconds_total       handler_seconds[handler] Seconds spent in the handler.
counter   informer_handler_errors_total        handler_errors[handler]  Exceptions raised by the handler.
""")


class LibraryMetrics:
    """Counts for informers, queues, controllers and webhooks; `families` shows everything."""

    def __init__(self) -> None:
        self._informers: dict[str, InformerCounts] = {}
        self._queues: dict[str, QueueCounts] = {}
        self._controllers: dict[str, ControllerCounts] = {}
        self._webhooks: dict[str, WebhookCounts] = {}

    def informer(self, name: str) -> InformerCounts:
        """Return the figures of one informer; one that is rebuilt under its name goes on counting."""
        return self._informers.setdefault(name, InformerCounts())

    def queue(self, name: str) -> QueueCounts:
        """Return the figures of one queue."""
        return self._queues.setdefault(name, QueueCounts())

    def controller(self, name: str) -> ControllerCounts:
        """Return the figures of one controller."""
        return self._controllers.setdefault(name, ControllerCounts())

    def webhook(self, path: str) -> WebhookCounts:
        """Return the figures of one webhook."""
        return self._webhooks.setdefault(path, WebhookCounts())

    def families(self) -> list[MetricFamily]:
        """Return the present metrics."""
        return [
            *(_family(metric, "name", self._queues) for metric in _QUEUES),
            *(_family(metric, "controller", self._controllers) for metric in _CONTROLLERS),
            # Only a program with webhooks shows them.
            *(_family(each, "webhook", self._webhooks) for each in _WEBHOOKS if self._webhooks),
            *(_family(metric, "name", self._informers) for metric in _INFORMERS),
        ]


def _family(metric: _Metric, label: str, counted: Mapping[str, Any]) -> MetricFamily:
    labels = (label, metric.by) if metric.by else (label,)
    family = MetricFamily(metric.kind, metric.name, metric.about, labels)
    for name, counts in counted.items():
        value = getattr(counts, metric.attribute)
        if metric.by:
            for key, number in value.items():
                family.add(number, name, key)
        else:
            family.add(value, name)
    return family


class QueueCounts:
    """The figures of one queue, a `QueueMetrics`."""

    def __init__(self) -> None:
        self.items = self.adds = self.retries = 0
        self.unfinished = self.longest = 0.0
        self.waits, self.works = Histogram(_QUEUE_BOUNDS), Histogram(_QUEUE_BOUNDS)

    def depth(self, items: int) -> None:
        self.items = items

    def added(self) -> None:
        self.adds += 1

    def waited(self, seconds: float) -> None:
        self.waits.add(seconds)

    def worked(self, seconds: float) -> None:
        self.works.add(seconds)

    def running(self, unfinished_seconds: float, longest_seconds: float) -> None:
        self.unfinished, self.longest = unfinished_seconds, longest_seconds

    def retried(self) -> None:
        self.retries += 1


class ControllerCounts:
    """The figures of one controller, a `ControllerMetrics`."""

    def __init__(self) -> None:
        self.outcomes: Counter[str] = Counter()
        self.seconds = Histogram(_RECONCILE_BOUNDS)
        self.workers = 0

    def reconciled(self, outcome: enum.Enum, seconds: float) -> None:
        self.outcomes[outcome.value] += 1
        self.seconds.add(seconds)

    def busy(self, workers: int) -> None:
        self.workers = workers


class WebhookCounts:
    """The figures of one webhook."""

    def __init__(self) -> None:
        self.codes: Counter[str] = Counter()
        self.seconds = Histogram(_RECONCILE_BOUNDS)

    def answered(self, code: int, seconds: float) -> None:
        """Count a request."""
        self.codes[str(code)] += 1
        self.seconds.add(seconds)


class InformerCounts:
    """The figures of one informer, an `InformerMetrics`."""

    def __init__(self) -> None:
        self.lists = Histogram(_LIST_BOUNDS)
        self.watches = self.waiting = self.changes = self.apply_errors = self.objects = 0
        self.backoff = self.version = 0.0
        self.ended: Counter[str] = Counter()
        self.rejections: Counter[str] = Counter()
        self.backlog: dict[str, int] = {}
        self.notifications: Counter[str] = Counter()
        self.handler_seconds: dict[str, float] = {}
        self.handler_errors: Counter[str] = Counter()
        self._doubt: Callable[[], str] = str

    def listed(self, *, items: int, seconds: float) -> None:
        # Not `items`: the store's size says it.
        self.lists.add(seconds)

    def observe(self, *, doubt: Callable[[], str]) -> None:
        self._doubt = doubt

    @property
    def doubted(self) -> int:
        """1 while the informer's store may be behind the server."""
        return 1 if self._doubt() else 0

    def watch_opened(self) -> None:
        self.watches += 1

    def watch_ended(self, *, reason: str) -> None:
        self.ended[reason] += 1

    def backed_off(self, *, seconds: float) -> None:
        self.backoff += seconds

    def rejected(self, *, reason: str) -> None:
        self.rejections[reason] += 1

    def queued(self, *, changes: int) -> None:
        self.waiting = changes

    def applied(self, *, changes: int, seconds: float) -> None:
        # Not `seconds`: once a batch, the rate of changes is what dashboards show.
        self.changes += changes

    def apply_failed(self) -> None:
        self.apply_errors += 1

    def stored(self, *, objects: int, version: str) -> None:
        self.objects = objects
        with contextlib.suppress(ValueError):  # versions are opaque; if one is a number, show it
            self.version = float(version)

    def pending(self, *, handler: str, notifications: int) -> None:
        self.backlog[handler] = notifications

    def handled(self, *, handler: str, notifications: int, seconds: float) -> None:
        self.notifications[handler] += notifications
        self.handler_seconds[handler] = self.handler_seconds.get(handler, 0.0) + seconds

    def handler_failed(self, *, handler: str) -> None:
        self.handler_errors[handler] += 1
