"""Conversions between versions of Kubernetes' own kinds that live in more than one.

HorizontalPodAutoscalers are stored in v2 and shown in v1 with what v1 knows; events are stored in
the core group and shown in events.k8s.io under its names. Both ways keep what the other shape
cannot say where it can be kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from elasti.devcluster.apiserver.resources import unchanged

if TYPE_CHECKING:
    from collections.abc import Callable

    from kubeloop.objects.meta import JsonObject

COLLECTIONS = {("events.k8s.io", "events"): "/events"}


def between(
    group: str, version: str, kind: str
) -> tuple[Callable[[JsonObject], JsonObject], Callable[[JsonObject], JsonObject]]:
    """Return (from the stored form, to the stored form) of a kind in a version."""
    match group, version, kind:
        case "autoscaling", "v1", "HorizontalPodAutoscaler":
            return autoscaler_to_v1, autoscaler_from_v1
        case "events.k8s.io", "v1", "Event":
            return event_to_new, event_from_new
        case _:
            return unchanged, unchanged


_METRICS = "autoscaling.alpha.kubernetes.io/metrics"


def autoscaler_to_v1(obj: JsonObject) -> JsonObject:
    """Show a v2 autoscaler as v1: the CPU utilisation, if that is a metric, is all it has."""
    result = {**obj, "apiVersion": "autoscaling/v1"}
    spec = dict(obj.get("spec") or {})
    metrics = spec.pop("metrics", None) or []
    spec.pop("behavior", None)
    for metric in metrics:
        target = (metric.get("resource") or {}).get("target") or {}
        if _is_cpu(metric) and "averageUtilization" in target:
            spec["targetCPUUtilizationPercentage"] = target["averageUtilization"]
    result["spec"] = spec
    if "status" in obj:
        result["status"] = _status_to_v1(obj["status"])
    return result


def _status_to_v1(status: JsonObject) -> JsonObject:
    result = {
        name: value
        for name, value in status.items()
        if name not in ("currentMetrics", "conditions")
    }
    for metric in status.get("currentMetrics") or []:
        current = (metric.get("resource") or {}).get("current") or {}
        if _is_cpu(metric) and "averageUtilization" in current:
            result["currentCPUUtilizationPercentage"] = current["averageUtilization"]
    return result


def _is_cpu(metric: JsonObject) -> bool:
    return metric.get("type") == "Resource" and (metric.get("resource") or {}).get("name") == "cpu"


def autoscaler_from_v1(obj: JsonObject) -> JsonObject:
    """Store a v1 autoscaler as v2."""
    result = {**obj, "apiVersion": "autoscaling/v2"}
    spec = dict(obj.get("spec") or {})
    percentage = spec.pop("targetCPUUtilizationPercentage", None)
    if percentage is not None:
        target = {"type": "Utilization", "averageUtilization": percentage}
        spec["metrics"] = [{"type": "Resource", "resource": {"name": "cpu", "target": target}}]
    result["spec"] = spec
    status = dict(obj.get("status") or {})
    current = status.pop("currentCPUUtilizationPercentage", None)
    if current is not None:
        value = {"averageUtilization": current, "averageValue": "0"}
        status["currentMetrics"] = [
            {"type": "Resource", "resource": {"name": "cpu", "current": value}}
        ]
    if status:
        result["status"] = status
    return result


# Core name, name in events.k8s.io.
_EVENT_NAMES = (
    ("involvedObject", "regarding"),
    ("message", "note"),
    ("reportingComponent", "reportingController"),
    ("source", "deprecatedSource"),
    ("firstTimestamp", "deprecatedFirstTimestamp"),
    ("lastTimestamp", "deprecatedLastTimestamp"),
    ("count", "deprecatedCount"),
)


def event_to_new(obj: JsonObject) -> JsonObject:
    """Show a core event as an events.k8s.io one."""
    names = dict(_EVENT_NAMES)
    return {names.get(name, name): value for name, value in obj.items()} | {
        "apiVersion": "events.k8s.io/v1"
    }


def event_from_new(obj: JsonObject) -> JsonObject:
    """Store an events.k8s.io event as a core one."""
    names = {new: core for core, new in _EVENT_NAMES}
    return {names.get(name, name): value for name, value in obj.items()} | {"apiVersion": "v1"}
