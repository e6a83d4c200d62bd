"""Waiting until definition and Deployments are rolled out, and why they are not yet."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import TYPE_CHECKING

from elasti.api.names import GROUP, PLURAL
from elasti.cli.exits import ExitCode, Failure
from elasti.cli.install.choices import Choices, Program, account, selector
from kubeloop.aio.wait import poll
from kubeloop.client.errors import Forbidden, NotFound

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from elasti.cli.rendering import Progress
    from kubeloop.client import Client
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
            yield f"no pod can be created: {condition.get('message', condition.get('reason', ''))}"


def _troubles(pods: Iterable[JsonObject]) -> Iterator[str]:
    for pod in pods:
        if pod["metadata"].get("deletionTimestamp"):
            continue
        for what in pod_troubles(pod.get("status") or {}):
            yield f"pod {pod['metadata']['name']}: {what}"


def pod_troubles(status: JsonObject) -> Iterator[str]:
    """Yield what keeps a pod from being ready, and does not end by itself."""
    for condition in status.get("conditions") or ():
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            yield f"{condition.get('reason', '')}: {condition.get('message', '')}".strip(": ")
    for container in status.get("containerStatuses") or ():
        waiting = (container.get("state") or {}).get("waiting")
        if waiting and waiting.get("reason", "") not in _PATIENT:
            yield f"{waiting.get('reason', 'waits')}: {waiting.get('message', '')}".rstrip(": ")


_DEFINITIONS = "apiextensions.k8s.io/v1/customresourcedefinitions"
_POLL_INTERVAL = 0.5


async def definition_served(client: Client, seconds: float) -> None:
    """Wait until ElastiServices can be made. Raises Failure."""
    definitions = client.resource(_DEFINITIONS)

    async def served() -> bool:
        found = await definitions.get(f"{PLURAL}.{GROUP}")
        conditions = found.get("status", {}).get("conditions") or ()
        return any(c["type"] == "Established" and c["status"] == "True" for c in conditions)

    try:
        await poll(served, _POLL_INTERVAL / 5, immediate=True, timeout=seconds)
    except TimeoutError:
        raise Failure(
            f"the cluster does not serve {PLURAL}.{GROUP} after {seconds:g} s",
            code=ExitCode.TIMED_OUT,
        ) from None
    client.mapper.invalidate()


async def programs_available(
    client: Client, choices: Choices, seconds: float, progress: Progress
) -> None:
    """Wait until every pod of the programs is of the newest kind and available. Raises Failure."""
    last: list[Rollout] = []
    namespace, programs = choices.namespace, choices.programs
    try:
        with progress.waiting() as waiting:
            async with asyncio.timeout(seconds):
                while not last or not all(item.is_done for item in last):
                    last = [await _read_rollout(client, namespace, program) for program in programs]
                    for item in last:
                        waiting.show(item.name, item.words)
                    await asyncio.sleep(_POLL_INTERVAL)
    except TimeoutError:
        raise _timed_out(last, namespace, seconds) from None


async def _read_rollout(client: Client, namespace: str, program: Program) -> Rollout:
    deployments = client.resource("apps/v1/deployments", namespace=namespace)
    try:
        found = await deployments.get(account(program))
    except NotFound:
        return Rollout(account(program), 0, 0, 0, is_done=False, troubles=("it was deleted",))
    seen = rollout(found)
    return seen if seen.is_done else rollout(found, await _pods(client, namespace, program))


async def _pods(client: Client, namespace: str, program: Program) -> list[JsonObject]:
    chosen = ",".join(f"{key}={value}" for key, value in selector(program).items())
    pods = client.resource("v1/pods", namespace=namespace)
    try:
        return [pod async for pod in pods.items(selector=chosen)]
    except Forbidden:
        # A user who may not list pods sees less, and can install all the same.
        return []


def _timed_out(last: list[Rollout], namespace: str, seconds: float) -> Failure:
    late = [item for item in last if not item.is_done]
    troubles = list(dict.fromkeys(what for item in late for what in item.troubles))
    remedy = [*troubles]
    if any("Image" in what for what in troubles):
        remedy.append("The nodes cannot pull the image: name one that they can with --image.")
    if any("CrashLoopBackOff" in what for what in troubles):
        remedy += [f"kubectl -n {namespace} logs deployment/{item.name}" for item in late]
    remedy.append(
        f"See why: kubectl -n {namespace} describe pods. Run the command again to keep waiting."
    )
    states = "; ".join(f"{item.name}: {item.words}" for item in late)
    return Failure(
        f"not ready after {seconds:g} s: {states}",
        code=ExitCode.TIMED_OUT,
        remedy="\n".join(remedy),
    )
