"""Pods as a table: readiness, a status word that tells what is going on, restarts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from elasti.devcluster.apiserver.resources import Column
from elasti.devcluster.apiserver.tables.cells import NONE, age, created, get, name, parse_time

if TYPE_CHECKING:
    import datetime as dt

    from kubeloop.objects.meta import JsonObject

POD_COLUMNS = (
    Column(name="Name", format="name"),
    Column(name="Ready"),
    Column(name="Status"),
    Column(name="Restarts"),
    Column(name="Age"),
    Column(name="IP", priority=1),
    Column(name="Node", priority=1),
    Column(name="Nominated Node", priority=1),
    Column(name="Readiness Gates", priority=1),
)


def pod_cells(pod: JsonObject, now: dt.datetime) -> list[Any]:
    """Return a pod's cells."""
    sidecars = _sidecars(pod)
    total = len(get(pod, "spec", "containers", default=[])) + len(sidecars)
    beside = [item for item in _initial(pod) if item.get("name") in sidecars]
    if _initial_word(pod) is None:
        counted = restarting = [*get(pod, "status", "containerStatuses", default=[]), *beside]
    else:
        counted, restarting = [item for item in beside if item.get("started")], _initial(pod)
    ready = sum(1 for item in counted if item.get("ready"))
    return [
        name(pod),
        f"{ready}/{total}",
        pod_word(pod),
        _restarts(restarting, now),
        created(pod, now),
        get(pod, "status", "podIP", default="") or NONE,
        get(pod, "spec", "nodeName", default="") or NONE,
        get(pod, "status", "nominatedNodeName", default="") or NONE,
        _gates(pod),
    ]


def _sidecars(pod: JsonObject) -> set[str]:
    """Return the initial containers that go on beside the others, and count as they do."""
    initial = get(pod, "spec", "initContainers", default=[])
    return {item.get("name", "") for item in initial if item.get("restartPolicy") == "Always"}


def _initial(pod: JsonObject) -> list[JsonObject]:
    return list(get(pod, "status", "initContainerStatuses", default=[]))


def _restarts(statuses: list[JsonObject], now: dt.datetime) -> str:
    count = sum(item.get("restartCount", 0) for item in statuses)
    ends = [get(item, "lastState", "terminated", "finishedAt", default="") for item in statuses]
    last = max((end for end in ends if end and parse_time(end)), default="")
    return f"{count} ({age(last, now)} ago)" if count and last else str(count)


def _gates(pod: JsonObject) -> str:
    gates = get(pod, "spec", "readinessGates", default=[])
    if not gates:
        return NONE
    conditions = get(pod, "status", "conditions", default=[])
    true = {item.get("type") for item in conditions if item.get("status") == "True"}
    return f"{sum(1 for gate in gates if gate.get('conditionType') in true)}/{len(gates)}"


def pod_word(pod: JsonObject) -> str:
    """Return the one word that says how a pod is."""
    word = get(pod, "status", "reason", default="") or get(pod, "status", "phase", default="")
    word = _initial_word(pod) or _container_word(pod, word)
    if not pod["metadata"].get("deletionTimestamp"):
        return str(word)
    if get(pod, "status", "reason") == "NodeLost":
        return "Unknown"
    return str(word) if word in ("Succeeded", "Failed", "Completed") else "Terminating"


def _initial_word(pod: JsonObject) -> str | None:
    """Return how initialisation is going; None when it is done."""
    total, sidecars = len(get(pod, "spec", "initContainers", default=[])), _sidecars(pod)
    for index, item in enumerate(_initial(pod)):
        terminated = get(item, "state", "terminated")
        if terminated is not None and not terminated.get("exitCode"):
            continue
        if item.get("started") and item.get("name") in sidecars:
            continue
        if terminated is not None:
            return f"Init:{_ended(terminated)}"
        waiting = get(item, "state", "waiting", "reason", default="")
        if waiting and waiting != "PodInitializing":
            return f"Init:{waiting}"
        return f"Init:{index}/{total}"
    return None


def _container_word(pod: JsonObject, word: str) -> str:
    running = False
    for item in reversed(get(pod, "status", "containerStatuses", default=[])):
        waiting = get(item, "state", "waiting", "reason", default="")
        terminated = get(item, "state", "terminated")
        if waiting:
            word = waiting
        elif terminated is not None:
            word = _ended(terminated)
        elif item.get("ready") and get(item, "state", "running") is not None:
            running = True
    if word == "Completed" and running:
        return "Running" if _is_ready(pod) else "NotReady"
    return word


def _ended(terminated: JsonObject) -> str:
    if terminated.get("reason"):
        return str(terminated["reason"])
    if terminated.get("signal"):
        return f"Signal:{terminated['signal']}"
    return f"ExitCode:{terminated.get('exitCode', 0)}"


def _is_ready(pod: JsonObject) -> bool:
    conditions = get(pod, "status", "conditions", default=[])
    return any(item.get("type") == "Ready" and item.get("status") == "True" for item in conditions)
