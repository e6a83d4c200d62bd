"""Pods and moments for tests of pure functions."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Any

import msgspec

from devkube.kubelet.environment import ConfigurationError, DownwardContext
from devkube.kubelet.pod_types import KubeletPod
from devkube.kubelet.pods.plan import RestartPolicy, WorkerPlan, plan_pod
from devkube.kubelet.pods.state import Exited, Moment, PodFact, PodState, Prepared, Started, observe
from devkube.kubelet.pods.status import restore_state
from devkube.kubelet.volume_sources import PodReferences

EPOCH = dt.datetime(2030, 1, 1, tzinfo=dt.UTC)


def at(seconds: float) -> Moment:
    return Moment(seconds, EPOCH + dt.timedelta(seconds=seconds))


def pod(*containers: Any, **fields: Any) -> KubeletPod:
    """A pod; containers are names or dictionaries, fields go to metadata, status or the spec."""
    made = [{"name": item} if isinstance(item, str) else item for item in containers]
    metadata = {"name": "web", "namespace": "default", "uid": "u1", **fields.pop("metadata", {})}
    status = fields.pop("status", {})
    spec = {"containers": made or [{"name": "main"}], "nodeName": "n", **fields}
    return msgspec.convert({"metadata": metadata, "spec": spec, "status": status}, KubeletPod)


def deleted(pod: KubeletPod, grace: int) -> KubeletPod:
    meta = msgspec.structs.replace(
        pod.metadata,
        deletion_timestamp="2030-01-01T00:00:00Z",
        deletion_grace_period_seconds=grace,
    )
    return msgspec.structs.replace(pod, metadata=meta)


class PodSimulation:
    """A pod's life, fact by fact; `actions` is what the last plan asked for."""

    def __init__(self, pod: KubeletPod, *, policy: RestartPolicy | None = None) -> None:
        self.pod = pod
        self.policy = policy or RestartPolicy()
        self.now = 0.0
        self.state: PodState = restore_state(pod, at(0))
        self.last = WorkerPlan(self.state)
        self.plan()

    @property
    def actions(self) -> tuple[Any, ...]:
        return self.last.actions

    def plan(self, now: float | None = None) -> tuple[Any, ...]:
        self.now = self.now if now is None else now
        self.last = plan_pod(self.pod, self.state, at(self.now), self.policy)
        self.state = self.last.state
        return self.last.actions

    def observe(self, fact: PodFact, now: float | None = None) -> tuple[Any, ...]:
        self.now = self.now if now is None else now
        self.state = observe(self.state, fact)
        return self.plan()

    def prepared(self) -> tuple[Any, ...]:
        return self.observe(Prepared("127.20.0.1"))

    def started(
        self,
        name: str = "main",
        now: float | None = None,
        *,
        started: bool = True,
        ready: bool = True,
    ) -> tuple[Any, ...]:
        self.now = self.now if now is None else now
        return self.observe(Started(name, f"devkube://{name}", at(self.now), started, ready))

    def exited(
        self, name: str = "main", code: int = 0, now: float | None = None
    ) -> tuple[Any, ...]:
        self.now = self.now if now is None else now
        return self.observe(Exited(name, code, at(self.now)))


class Objects(PodReferences):
    """References to a fixed set of objects."""

    def __init__(self, **content: Mapping[str, bytes]) -> None:
        super().__init__("default", {})
        self._objects = content

    def content(self, kind: str, name: str, *, optional: bool) -> Mapping[str, bytes]:
        if name not in self._objects and not optional:
            raise ConfigurationError(f'{kind.lower()} "{name}" not found')
        return self._objects.get(name, {})


def facts(**metadata: Any) -> DownwardContext:
    made = pod({"name": "main"}, metadata=metadata, serviceAccountName="robot")
    return DownwardContext(made, "127.20.0.7", "127.0.0.1")
