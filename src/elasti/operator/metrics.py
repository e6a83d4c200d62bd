"""Metrics under KubeElasti's names, with labels that cannot grow without bound.

`error` is the class of an error, never its text; series of an ElastiService go with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from elasti.operator.modes import HOLDS

if TYPE_CHECKING:
    from elasti.operator.modes import State
    from kubeloop.controller.reconcile import Request


class Metrics:
    """The operator's metrics, in a registry of their own."""

    def __init__(self) -> None:
        registry = self._registry = CollectorRegistry()
        self._reconcile = Histogram(
            "elasti_operator_reconcile",
            "Duration of reconciles in seconds.",
            ["crd_name", "error"],
            registry=registry,
            buckets=(0.005, 0.02, 0.1, 0.5, 2, 10),
        )
        self._finalizer = Counter(
            "elasti_operator_CRD_finalizer_counter",
            "Ends of ElastiServices.",
            ["crd_name", "error"],
            registry=registry,
        )
        self._updates = Counter(
            "elasti_operator_CRD_update_counter",
            "Changes of mode.",
            ["crd_name", "mode", "error"],
            registry=registry,
        )
        self._mode = Gauge(
            "elasti_operator_mode", "1 in proxy mode, else 0.", ["crd_name"], registry=registry
        )
        self._informers = Gauge(
            "elasti_operator_informer_count", "Watches held.", ["informer_name"], registry=registry
        )
        self._scale = Counter(
            "elasti_operator_scale_counter",
            "Writes of a target's scale.",
            ["service_name", "namespace", "target", "error"],
            registry=registry,
        )
        self._wakes = Counter(
            "elasti_operator_wake_requests",
            "Requests for a wake-up, by what was done.",
            ["outcome"],
            registry=registry,
        )
        self._modes: dict[Request, str] = {}

    def reconciled(self, request: Request, seconds: float, error: BaseException | None) -> None:
        """A reconcile ended."""
        self._reconcile.labels(str(request), _class(error)).observe(seconds)

    def finalized(self, request: Request, error: BaseException | None) -> None:
        """An ElastiService was let go, or that failed."""
        self._finalizer.labels(str(request), _class(error)).inc()

    def state(self, request: Request, state: State | None) -> None:
        """An ElastiService is in a state."""
        mode = HOLDS[state].mode if state else ""
        if mode != self._modes.get(request, ""):
            self._modes[request] = mode
            self._updates.labels(str(request), mode, "").inc()
        self._mode.labels(str(request)).set(mode == "proxy")

    def scaled(
        self, service: str, namespace: str, target: str, error: BaseException | None
    ) -> None:
        """A target's scale was written, or could not be."""
        self._scale.labels(service, namespace, target, _class(error)).inc()

    def woken(self, outcome: str) -> None:
        """A wake request was answered."""
        self._wakes.labels(outcome).inc()

    def watches(self, count: int) -> None:
        """So many watches are held."""
        self._informers.labels("all").set(count)

    def forget(self, request: Request) -> None:
        """An ElastiService is gone, and its series with it."""
        self._modes.pop(request, None)
        name = {"crd_name": str(request)}
        for metric in (self._reconcile, self._finalizer, self._updates, self._mode):
            metric.remove_by_labels(name)

    def render(self) -> bytes:
        """Return everything in Prometheus' text format."""
        return generate_latest(self._registry)


def _class(error: BaseException | None) -> str:
    return "" if error is None else type(error).__name__
