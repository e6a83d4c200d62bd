"""Objects for planners, as values."""

from __future__ import annotations

import datetime as dt
from typing import Any

import msgspec

from devkube.controllers.objects import Deployment, ReplicaSet, SlimPod, StatefulSet
from kubeloop.objects.times import format_time

NOW = dt.datetime(2030, 1, 1, 12, 0, 0, tzinfo=dt.UTC)


def ago(seconds: float) -> str:
    return format_time(NOW - dt.timedelta(seconds=seconds))


def a_pod(
    name: str = "pod",
    *,
    ready: bool | None = True,
    ready_for: float = 100,
    age: float = 100,
    node: str = "node-1",
    phase: str = "Running",
    deleting: bool = False,
    ip: str = "10.0.0.1",
    labels: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
    ports: list[dict[str, Any]] | None = None,
    owner: str = "",
    **spec: Any,
) -> SlimPod:
    """A pod; `ready` None leaves the condition out."""
    metadata: dict[str, Any] = {
        "name": name,
        "namespace": "default",
        "uid": f"uid-{name}",
        "resourceVersion": "1",
        "labels": labels or {},
        "annotations": annotations or {},
        "creationTimestamp": ago(age),
    }
    if deleting:
        metadata["deletionTimestamp"] = ago(0)
    if owner:
        reference = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "x", "uid": owner}
        metadata["ownerReferences"] = [{**reference, "controller": True}]
    conditions = []
    if ready is not None:
        status = "True" if ready else "False"
        conditions = [{"type": "Ready", "status": status, "lastTransitionTime": ago(ready_for)}]
    return msgspec.convert(
        {
            "metadata": metadata,
            "spec": {"nodeName": node, "containers": [{"name": "c", "ports": ports}], **spec},
            "status": {
                "phase": phase,
                "podIP": ip,
                "podIPs": [{"ip": ip}] if ip else [],
                "conditions": conditions,
            },
        },
        SlimPod,
    )


def a_template(image: str = "web:1") -> dict[str, Any]:
    return {
        "metadata": {"labels": {"app": "web"}},
        "spec": {"containers": [{"name": "web", "image": image}]},
    }


def a_deployment(
    replicas: int = 3,
    *,
    surge: int | str = "25%",
    unavailable: int | str = "25%",
    image: str = "web:1",
    status: dict[str, Any] | None = None,
    annotations: dict[str, str] | None = None,
    **spec: Any,
) -> Deployment:
    rolling = {"maxSurge": surge, "maxUnavailable": unavailable}
    return msgspec.convert(
        {
            "metadata": {
                "name": "web",
                "namespace": "default",
                "uid": "uid-web",
                "generation": 1,
                "annotations": annotations or {},
            },
            "spec": {
                "replicas": replicas,
                "selector": {"matchLabels": {"app": "web"}},
                "template": a_template(image),
                "strategy": {"type": "RollingUpdate", "rollingUpdate": rolling},
                "progressDeadlineSeconds": 600,
                **spec,
            },
            "status": status or {},
        },
        Deployment,
    )


def a_replica_set(
    name: str = "web-a",
    replicas: int = 3,
    *,
    image: str = "web:1",
    present: int | None = None,
    available: int | None = None,
    revision: int = 1,
    age: float = 100,
    annotations: dict[str, str] | None = None,
) -> ReplicaSet:
    """A ReplicaSet; what is not said of its pods is as wanted."""
    there = replicas if present is None else present
    fine = there if available is None else available
    return msgspec.convert(
        {
            "metadata": {
                "name": name,
                "namespace": "default",
                "uid": f"uid-{name}",
                "resourceVersion": "1",
                "generation": 1,
                "creationTimestamp": ago(age),
                "annotations": {
                    "deployment.kubernetes.io/revision": str(revision),
                    **(annotations or {}),
                },
            },
            "spec": {"replicas": replicas, "template": a_template(image)},
            "status": {
                "replicas": there,
                "readyReplicas": fine,
                "availableReplicas": fine,
                "observedGeneration": 1,
            },
        },
        ReplicaSet,
    )


def a_stateful_set(replicas: int = 3, *, image: str = "web:1", **spec: Any) -> StatefulSet:
    return msgspec.convert(
        {
            "metadata": {
                "name": "db",
                "namespace": "default",
                "uid": "uid-db",
                "generation": 1,
            },
            "spec": {"replicas": replicas, "template": a_template(image), **spec},
        },
        StatefulSet,
    )
