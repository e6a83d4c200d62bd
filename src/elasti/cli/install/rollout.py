"""How far a Deployment is, and what is wrong with its pods, from what the server shows. Pure."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from kubeloop.objects.meta import JsonObject

# A container that starts says so too; only these will not end by themselves.
_PATIENT = frozenset({"ContainerCreating", "PodInitializing"})


@dataclasses.dataclass(frozen=True, slots=True)
class Rollout:
    """How far one Deployment is; `troubles` are sentences for people."""

    name: str
    wanted: int
    updated: int
    available: int
    is_done: bool
    troubles: tuple[str, ...] = ()

    @property
    def words(self) -> str:
        """How far it is, and its first trouble."""
        trouble = f" ({self.troubles[0]})" if self.troubles else ""
        if self.is_done or self.available < self.wanted:
            return f"{self.available} of {self.wanted} available{trouble}"
        return f"{self.updated} of {self.wanted} new, {self.available} available{trouble}"


def rollout(deployment: JsonObject, pods: Iterable[JsonObject] = ()) -> Rollout:
    """Read how far a Deployment is: done when every pod is of the newest kind and available."""
    meta, status = deployment["metadata"], deployment.get("status") or {}
    wanted = deployment["spec"].get("replicas", 1)
    updated, available = status.get("updatedReplicas", 0), status.get("availableReplicas", 0)
    seen = status.get("observedGeneration", 0) >= meta.get("generation", 0)
    counts = (updated, available, status.get("replicas", 0))
    done = seen and all(count == wanted for count in counts)
    troubles = () if done else (*_refusals(status), *_troubles(pods))
    return Rollout(meta["name"], wanted, updated if seen else 0, available, done, troubles)


def _refusals(status: JsonObject) -> Iterator[str]:
    for condition in status.get("conditions") or ():
        if condition["type"] == "ReplicaFailure" and condition["status"] == "True":
            yield f"no pod can be made: {condition.get('message', condition.get('reason', ''))}"


def _troubles(pods: Iterable[JsonObject]) -> Iterator[str]:
    for pod in pods:
        if pod["metadata"].get("deletionTimestamp"):
            continue
        for what in _of_pod(pod.get("status") or {}):
            yield f"pod {pod['metadata']['name']}: {what}"


def _of_pod(status: JsonObject) -> Iterator[str]:
    for condition in status.get("conditions") or ():
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            yield f"has no node: {condition.get('message', '')}"
    for container in status.get("containerStatuses") or ():
        waiting = (container.get("state") or {}).get("waiting")
        if waiting and waiting.get("reason", "") not in _PATIENT:
            yield f"{waiting.get('reason', 'waits')}: {waiting.get('message', '')}".rstrip(": ")
