"""A cluster in memory whose pods have requests, with a kubelet that confirms them, or says Deferred."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from tests.operator.environment import Environment

from kubeloop.objects.gvk import GroupVersionResource
from kubeloop.objects.meta import JsonObject
from tests.waiting import eventually

ORIGINAL = "900m"


def container(name: str = "app", cpu: str = ORIGINAL, **more: Any) -> JsonObject:
    requests = {"cpu": cpu, "memory": "512Mi"}
    return {"name": name, "resources": {"requests": requests}, **more}


class DozingCluster(Environment):
    """`full_nodes`: whether the kubelet of a pod has no room for it to grow."""

    def __init__(self, *containers: JsonObject, qos: str = "Burstable", **settings: Any) -> None:
        super().__init__(**{"doze": True, **settings})
        self.pod_spec = {"containers": list(containers or (container(),)), "nodeName": "n"}
        self.pod_status = {"qosClass": qos, "phase": "Running"}
        self.pod_labels = {"pod-template-hash": "abc"}
        self.full_nodes: Callable[[str], bool] = lambda _pod: False
        self.pending = "Deferred"
        self.seen: set[str] = set()
        """Every CPU request that any container ever had."""
        self.server.on_change.append(self._kubelet)

    def dozes(self, replicas: int = 1, *, mode: str = "Doze", **spec: Any) -> None:
        """A target that may doze."""
        sleep = {"mode": mode, **spec.pop("sleep", {})}
        self.web(replicas, sleep=sleep, **spec)

    @property
    def requests(self) -> dict[str, str]:
        """The CPU request of each pod's first container."""
        return {pod["metadata"]["name"]: cpu(pod) for pod in self.all("pods")}

    @property
    def phase(self) -> str:
        return str(self.status.get("phase", ""))

    @property
    def doze(self) -> JsonObject:
        return self.status.get("doze") or {}

    def condition(self, kind: str) -> JsonObject:
        found = self.status.get("conditions") or []
        return next((entry for entry in found if entry["type"] == kind), {})

    async def reaches(self, phase: str, *, within: float = 300.0) -> None:
        try:
            await eventually(lambda: self.phase == phase, timeout=within, every=0.05)
        except AssertionError:
            told = f"{phase} was expected, not {self.phase}: {self.status} {self.recorder.told}"
            raise AssertionError(told) from None

    def _kubelet(self, gvr: GroupVersionResource, obj: JsonObject, gone: bool) -> None:
        if gvr.resource != "pods":
            return
        loop = asyncio.get_running_loop()
        if gone:
            loop.call_later(0.2, self._pods_changed)
            return
        self.seen.add(cpu(obj))
        loop.call_later(0.3, self._confirm, obj["metadata"]["name"])

    def _confirm(self, name: str) -> None:
        pod = self.find("pods", name)
        if pod is None:
            return
        old = pod.get("status", {})
        grows = cpu(pod) == ORIGINAL and _actual(old) not in ("", ORIGINAL)
        deferred = grows and self.full_nodes(name)
        conditions = [c for c in old.get("conditions", ()) if c["type"] == "Ready"]
        statuses = [
            {"name": c["name"], "resources": c["resources"]} for c in pod["spec"]["containers"]
        ]
        if deferred:
            message = "Node didn't have enough resource: cpu"
            pending = {"type": "PodResizePending", "status": "True", "reason": self.pending}
            conditions.append(pending | {"message": message})
            statuses = old.get("containerStatuses", statuses)
        status = {**old, "conditions": conditions, "containerStatuses": statuses}
        if status != old:
            self.put("pods", {**pod, "status": status}, name)


def cpu(pod: JsonObject) -> str:
    containers: Any = (pod.get("spec") or {}).get("containers") or ({},)
    return str((containers[0].get("resources") or {}).get("requests", {}).get("cpu", ""))


def _actual(status: JsonObject) -> str:
    found: Any = status.get("containerStatuses") or ({},)
    return str((found[0].get("resources") or {}).get("requests", {}).get("cpu", ""))
