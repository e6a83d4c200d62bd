"""Pods as a table: readiness, restarts, and one word that says how a pod is."""

from __future__ import annotations

import datetime as dt

from devkube.apiserver.tables.cells import NONE, age, get, parse_time
from kubeloop.objects.meta import JsonObject


def ready(pod: JsonObject, _now: dt.datetime) -> str:
    """Show how many containers are ready, of how many."""
    counted = [] if _initial_word(pod) is not None else _running(pod)
    total = len(get(pod, "spec", "containers", default=[]))
    return f"{sum(1 for item in counted if item.get('ready'))}/{total}"


def _running(pod: JsonObject) -> list[JsonObject]:
    return list(get(pod, "status", "containerStatuses", default=[]))


def _initial(pod: JsonObject) -> list[JsonObject]:
    return list(get(pod, "status", "initContainerStatuses", default=[]))


def restarts(pod: JsonObject, now: dt.datetime) -> str:
    """Show how often containers were started again, and when last."""
    statuses = _initial(pod) if _initial_word(pod) is not None else _running(pod)
    count = sum(item.get("restartCount", 0) for item in statuses)
    ends = [get(item, "lastState", "terminated", "finishedAt", default="") for item in statuses]
    last = max((end for end in ends if end and parse_time(end)), default="")
    return f"{count} ({age(last, now)} ago)" if count and last else str(count)


def gates(pod: JsonObject, _now: dt.datetime) -> str:
    """Show how many readiness gates are open."""
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
    total = len(get(pod, "spec", "initContainers", default=[]))
    for index, item in enumerate(_initial(pod)):
        terminated = get(item, "state", "terminated")
        if terminated is not None and not terminated.get("exitCode"):
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
