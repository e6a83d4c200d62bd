"""Several apps in memory and in virtual time, which may depend on each other."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from tests.operator.environment import TRIGGER, Environment, _endpoint

from elasti.api.names import PRIVATE_LABEL
from kubeloop.objects.gvk import GroupVersionResource
from kubeloop.objects.meta import JsonObject
from tests.waiting import eventually


class Apps(Environment):
    """Several apps, each with a pod that needs its time to start; notes when each was scaled up, served and parked."""

    def __init__(
        self,
        edges: Mapping[str, list[str]],
        starts: Mapping[str, float],
        *,
        replicas: int = 0,
        **settings: Any,
    ) -> None:
        self.edges, self.starts = dict(edges), starts
        self.slice_lag = 0.0
        self.running: set[str] = set()
        self.scaled: dict[str, float] = {}
        self.parked: dict[str, float] = {}
        self.served: dict[str, float] = {}
        self.wrong: list[str] = []
        super().__init__(**settings)
        for name in edges:
            needed = any(name in named for named in edges.values())
            depends_on = [{"name": one} for one in edges[name]]
            self.web(
                replicas, name=name, dependsOn=depends_on, triggers=[] if needed else [TRIGGER]
            )

    def depend(self, name: str, *needed: str) -> None:
        """Edit what an app depends on; an app that is not needed any longer gets a trigger."""
        lost = set(self.edges[name]) - set(needed)
        self.edges[name] = list(needed)
        self._edit(name, dependsOn=[{"name": one} for one in needed])
        for one in lost - {one for named in self.edges.values() for one in named}:
            self._edit(one, triggers=[TRIGGER])

    def _edit(self, name: str, **spec: Any) -> None:
        found = self.get("elastiservices", name)
        self.put("elastiservices", found | {"spec": found["spec"] | spec}, name)

    def up(self, name: str) -> bool:
        found = self.find("deployments", name)
        return bool(found and found["spec"]["replicas"])

    def state_of(self, name: str) -> str:
        return str((self.get("elastiservices", name).get("status") or {}).get("state", ""))

    def status_of(self, name: str) -> JsonObject:
        return self.get("elastiservices", name)["status"]

    def _controllers(self, gvr: GroupVersionResource, obj: JsonObject, gone: bool) -> None:
        loop, name = asyncio.get_running_loop(), obj["metadata"]["name"]
        if gvr.resource == "services" and not gone:
            loop.call_later(0.05, self._pods_changed)
        if gvr.resource != "deployments" or gone:
            return
        if obj["spec"]["replicas"] and name not in self.scaled:
            self.scaled[name] = loop.time()
            loop.call_later(self.starts.get(name, 1.0), self._started, name)
        elif not obj["spec"]["replicas"]:
            self.running.discard(name)
            if name in self.scaled:
                self.parked[name] = loop.time()
            self.scaled.pop(name, None)
            self.served.pop(name, None)
            needing = [one for one, named in self.edges.items() if name in named and self.up(one)]
            self.wrong += [f"{name} was parked while {one} is awake" for one in needing]
            loop.call_later(self.slice_lag, self._pods_changed)

    def _started(self, name: str) -> None:
        if name in self.scaled:
            self.running.add(name)
            self.served.setdefault(name, asyncio.get_running_loop().time())
            self._pods_changed()

    def _pods_changed(self) -> None:
        for service in self.all("services"):
            meta, app = service["metadata"], service["spec"]["selector"]["app"]
            labels = {"kubernetes.io/service-name": meta["name"]}
            labels |= {k: v for k, v in (meta.get("labels") or {}).items() if k == PRIVATE_LABEL}
            ready = {"conditions": [{"type": "Ready", "status": "True"}]}
            if app in self.running and self.find("pods", f"{app}-0") is None:
                self.put(
                    "pods", {"metadata": {"labels": {"app": app}}, "status": ready}, f"{app}-0"
                )
            elif app not in self.running and self.find("pods", f"{app}-0") is not None:
                self.delete("pods", f"{app}-0")
            body: JsonObject = {
                "metadata": {"labels": labels},
                "addressType": "IPv4",
                "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
                "endpoints": [self._pod(app)] if app in self.running else [],
            }
            self.put("endpointslices", body, f"{meta['name']}-pods")

    def _pod(self, app: str) -> JsonObject:
        found = _endpoint("10.1.0.1", f"{app}-0")
        found["targetRef"]["uid"] = self.get("pods", f"{app}-0")["metadata"]["uid"]
        return found

    async def asleep(self, *, within: float = 600.0) -> None:
        await eventually(
            lambda: all(self.state_of(name) == "Proxy" for name in self.edges),
            timeout=within,
            every=0.5,
        )

    async def serving(self, name: str, *, within: float = 300.0) -> float:
        """Wait until it serves; returns when that was."""
        await eventually(lambda: name in self.served, timeout=within, every=0.05)
        return self.served[name]
