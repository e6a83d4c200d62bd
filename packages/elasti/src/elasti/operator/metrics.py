"""Metrics under KubeElasti's names, with labels that cannot grow without bound.

`error` is `success`, or the class of an error and never its text. The series of an ElastiService go
with it; only that it ended stays to be seen for a while, for those that ended last.
"""

from __future__ import annotations

import datetime as dt
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping

from elasti.api.conditions import TransitionReason
from elasti.api.defaults import COLD_START_BOUNDS, TRIGGER_VALUE_METRIC
from elasti.api.states import State
from elasti.api.types import CapacityStatus, ElastiServiceSpec, ElastiServiceStatus, UsageStatus
from elasti.api.usage import with_present
from kubeloop.aio.clock import SystemClock
from kubeloop.controller.reconcile import Request
from kubeloop.metrics.library import LibraryMetrics
from kubeloop.metrics.text import MetricKind, OwnedSeries

_SUCCESS = "success"
_BOUNDS = (0.005, 0.02, 0.1, 0.5, 2.0, 10.0)
_MAX_ENDED = 256
_UNOWNED = None
# By the field of status that has it. Kubernetes counts CPU in thousandths of a core, Prometheus in cores.
_RELEASED: Mapping[str, tuple[MetricKind, str, str]] = {
    "cpu_millicores": ("gauge", "cpu_cores", "CPU that the sleeping target releases now."),
    "memory_bytes": ("gauge", "memory_bytes", "Memory that the sleeping target releases now."),
    "cpu_millicore_seconds": ("counter", "cpu_core_seconds_total", "CPU released by sleep so far."),
    "memory_byte_seconds": (
        "counter", "memory_byte_seconds_total", "Memory released by sleep so far.",
    ),
}  # fmt: skip


class OperatorMetrics:
    """The operator's metrics."""

    def __init__(self) -> None:
        self.library = LibraryMetrics()
        self._reconcile = OwnedSeries(
            "histogram",
            "elasti_operator_reconcile",
            "Duration of reconciles in seconds.",
            ["crd_name", "error"],
            _BOUNDS,
        )
        self._finalizer = _counter("CRD_finalizer_counter", "ElastiServices finalized.", "crd_name")
        self._updates = _counter(
            "CRD_update_counter", "Changes between the modes serve and proxy.", "crd_name", "mode"
        )
        self._mode = OwnedSeries(
            "gauge", "elasti_operator_mode", "1 in proxy mode, else 0.", ["crd_name"]
        )
        self._informers = OwnedSeries(
            "gauge", "elasti_operator_informer_count", "Watches held.", ["informer_name"]
        )
        self._follows = _counter(
            "informer_counter", "Targets added to or removed from watching.",
            "crd_name", "action",
        )  # fmt: skip
        self._handled = _counter(
            "informer_handler_counter", "Watch events that concern an ElastiService.",
            "crd_name", "key",
        )  # fmt: skip
        self._scale = _counter(
            "scale_counter", "Writes to a target's scale.", "service_name", "namespace", "target"
        )
        self._woken = _total("elasti_wakes_total", "Sleeping targets woken, by cause.", "cause")
        self._parks = _total(
            "elasti_parks_total", "Attempts to put a target to sleep, by outcome.", "outcome"
        )
        self._cold_starts = OwnedSeries(
            "histogram",
            "elasti_cold_start_seconds",
            "Seconds of a cold start, by stage: scale and release here, the others in the resolver.",
            ["stage"],
            COLD_START_BOUNDS,
        )
        self._sleeps_at = OwnedSeries(
            "gauge",
            "elasti_sleeps_at_timestamp_seconds",
            "Unix time at which the target will sleep if it stays idle; absent if unknown.",
            ["crd_name"],
        )
        self._trigger_values = OwnedSeries(
            "gauge",
            TRIGGER_VALUE_METRIC,
            "Last value of a trigger, by index in spec.triggers. Leader only.",
            ["crd_name", "trigger"],
        )
        self._released = {
            field: OwnedSeries(kind, f"elasti_released_{name}", about, ["crd_name"])
            for field, (kind, name, about) in _RELEASED.items()
        }
        self._answers = _total(
            "elasti_operator_wake_requests_total", "Wake requests answered, by outcome.", "outcome"
        )
        self._notifications = _total(
            "elasti_notifications_total",
            "Notifications by outcome: sent, failed, dropped because too many waited. Leader only.",
            "outcome",
        )
        self._rebuilt = _total(
            "elasti_operator_informer_restarts_total", "Watches restarted.", "informer_name"
        )
        self._in_clear = _total(
            "elasti_operator_plaintext_calls_total",
            "Calls between operator and resolver without TLS, although it is on.",
            "direction",
        )
        self._calls_in_clear: Callable[[], Mapping[str, int]] = dict
        self.tracing: Callable[[], Iterable[object]] = tuple
        self._watches: Callable[[], Mapping[str, int]] = dict
        self._restarts: Callable[[], Mapping[str, int]] = dict
        self._modes: dict[Request, str] = {}
        self._statuses: dict[Request, ElastiServiceStatus] = {}
        self._now: Callable[[], dt.datetime] = SystemClock().now
        self._ended: OrderedDict[Request, None] = OrderedDict()

    def reconciled(self, request: Request, seconds: float, error: BaseException | None) -> None:
        """A reconcile ended."""
        self._reconcile.observe(request, str(request), _class(error), value=seconds)

    def finalized(self, request: Request, error: BaseException | None) -> None:
        """An ElastiService was let go, or that failed."""
        self._finalizer.add(request, str(request), _class(error))
        self._ended[request] = None
        self._ended.move_to_end(request)
        while len(self._ended) > _MAX_ENDED:
            self._finalizer.remove(self._ended.popitem(last=False)[0])

    def state(self, request: Request, state: State | None) -> None:
        """An ElastiService is in a state."""
        mode = state.mode if state else ""
        if mode != self._modes.get(request, ""):
            self._modes[request] = mode
            self._updates.add(request, str(request), mode, _SUCCESS)
        self._mode.put(request, str(request), value=float(mode == "proxy"))

    def follows(self, request: Request, action: str) -> None:
        """An ElastiService's target is now watched (`add`), or no longer (`stop`)."""
        self._follows.add(request, str(request), action, _SUCCESS)

    def handled(self, request: Request, key: str) -> None:
        """A change came of an object that concerns an ElastiService; `key` is what it is to it."""
        self._handled.add(request, str(request), key, _SUCCESS)

    def scaled(
        self, request: Request, spec: ElastiServiceSpec, error: BaseException | None
    ) -> None:
        """A target's scale was written, or could not be."""
        ref = spec.scale_target_ref
        target = f"{ref.kind}-{ref.name}"
        self._scale.add(request, spec.service, request.namespace, target, _class(error))

    def wake_answered(self, outcome: str) -> None:
        """A wake request was answered."""
        self._answers.add(_UNOWNED, outcome)

    def woken(self, cause: str) -> None:
        """A sleeping target was woken."""
        self._woken.add(_UNOWNED, cause)

    def notified(self, outcome: str) -> None:
        """A notification was sent, or not."""
        self._notifications.add(_UNOWNED, outcome)

    def park_ended(self, why: TransitionReason) -> None:
        """An attempt to put a target to sleep ended: it sleeps (PARKED), or why it does not."""
        self._parks.add(_UNOWNED, why)

    def cold_start(self, stage: str, seconds: float) -> None:
        """A stage of a cold start is over."""
        self._cold_starts.observe(_UNOWNED, stage, value=seconds)

    def triggers_show(self, request: Request, values: Iterable[float | None]) -> None:
        """The triggers of an ElastiService were read; None for one that could not be."""
        self._trigger_values.remove(request)
        for index, value in enumerate(values):
            if value is not None:
                self._trigger_values.put(request, str(request), str(index), value=value)

    def sleeps_at(self, request: Request, moment: float | None) -> None:
        """A target will sleep at this time; None if unknown."""
        if moment is None:
            self._sleeps_at.remove(request)
        else:
            self._sleeps_at.put(request, str(request), value=moment)

    def released(self, request: Request, status: ElastiServiceStatus) -> None:
        """Status says this of what a target's sleep releases; it is counted up to every scrape."""
        self._statuses[request] = status

    def _count_released(self) -> None:
        now = self._now()
        for request, status in self._statuses.items():
            usage = with_present(status, now) or UsageStatus("")
            capacity = status.capacity if status.released_since else None
            for field, series in self._released.items():
                source = usage if field.endswith("_seconds") else capacity or CapacityStatus()
                unit = 1000 if field.startswith("cpu_milli") else 1
                series.put(request, str(request), value=getattr(source, field) / unit)

    def observe_clock(self, now: Callable[[], dt.datetime]) -> None:
        """Take the time from here."""
        self._now = now

    def observe_calls_in_clear(self, counts: Callable[[], Mapping[str, int]]) -> None:
        """Ask this at every scrape: how many calls were sent and received without TLS."""
        self._calls_in_clear = counts

    def observe_watches(
        self, counts: Callable[[], Mapping[str, int]], restarts: Callable[[], Mapping[str, int]]
    ) -> None:
        """Ask these at every scrape: how many watches are held, and were started again."""
        self._watches, self._restarts = counts, restarts

    def forget(self, request: Request) -> None:
        """An ElastiService is gone, and its series with it."""
        self._modes.pop(request, None)
        self._statuses.pop(request, None)
        for metric in self.own():
            # That it ended stays to be seen for a while.
            if metric is not self._finalizer:
                metric.remove(request)

    def pieces(self) -> Iterator[str]:
        """Write everything in Prometheus' text format, piece by piece."""
        for name, count in self._watches().items():
            self._informers.put(_UNOWNED, name, value=count)
        for name, count in self._restarts().items():
            self._rebuilt.put(_UNOWNED, name, value=count)
        for direction, count in self._calls_in_clear().items():
            self._in_clear.put(_UNOWNED, direction, value=count)
        self._count_released()
        for metric in self.own():
            yield from metric.pieces()
        yield from map(str, (*self.library.families(), *self.tracing()))

    def own(self) -> Iterator[OwnedSeries]:
        """Iterate over the metrics that are not the library's."""
        yield from (metric for metric in vars(self).values() if isinstance(metric, OwnedSeries))
        yield from self._released.values()

    def render(self) -> bytes:
        """Return everything in Prometheus' text format."""
        return "".join(self.pieces()).encode()


def _counter(name: str, about: str, *labels: str) -> OwnedSeries:
    return OwnedSeries("counter", f"elasti_operator_{name}", about, [*labels, "error"])


def _total(name: str, about: str, label: str) -> OwnedSeries:
    return OwnedSeries("counter", name, about, [label])


def _class(error: BaseException | None) -> str:
    return _SUCCESS if error is None else type(error).__name__
