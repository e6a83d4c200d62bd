"""Pods and workloads as tables: readiness, a status word, how many there are and should be."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from devkube.apiserver.registry.resources import Column
from devkube.apiserver.tables.cells import (
    NONE,
    age,
    containers,
    created,
    duration,
    get,
    labels,
    name,
    parse_time,
    selector,
)

if TYPE_CHECKING:
    import datetime as dt

    from kubeloop.objects.meta import JsonObject


NAME = Column(name="Name", format="name")
AGE = Column(name="Age")
_WIDE = (
    Column(name="Containers", priority=1),
    Column(name="Images", priority=1),
    Column(name="Selector", priority=1),
)


def _number(title: str) -> Column:
    return Column(name=title, type="integer")


DEPLOYMENT = (
    NAME,
    Column(name="Ready"),
    Column(name="Up-to-date"),
    Column(name="Available"),
    AGE,
    *_WIDE,
)
REPLICA_SET = (NAME, _number("Desired"), _number("Current"), _number("Ready"), AGE, *_WIDE)
STATEFUL_SET = (NAME, Column(name="Ready"), AGE, *_WIDE[:2])
DAEMON_SET = (
    NAME,
    *map(_number, ("Desired", "Current", "Ready", "Up-to-date", "Available")),
    Column(name="Node Selector"),
    AGE,
    *_WIDE,
)
JOB = (
    NAME,
    Column(name="Status"),
    Column(name="Completions"),
    Column(name="Duration"),
    AGE,
    *_WIDE,
)
CRON_JOB = (
    NAME,
    Column(name="Schedule"),
    Column(name="Timezone"),
    Column(name="Suspend", type="boolean"),
    _number("Active"),
    Column(name="Last Schedule"),
    AGE,
    *_WIDE,
)
REVISION = (NAME, Column(name="Controller"), _number("Revision"), AGE)


def _wide(obj: JsonObject) -> list[str]:
    return [*containers(get(obj, "spec", "template")), selector(get(obj, "spec", "selector"))]


def deployment(obj: JsonObject, now: dt.datetime) -> list[Any]:
    """Return a Deployment's cells."""
    return [
        name(obj),
        f"{get(obj, 'status', 'readyReplicas', default=0)}/{get(obj, 'spec', 'replicas', default=0)}",
        get(obj, "status", "updatedReplicas", default=0),
        get(obj, "status", "availableReplicas", default=0),
        created(obj, now),
        *_wide(obj),
    ]


def replica_set(obj: JsonObject, now: dt.datetime) -> list[Any]:
    """Return a ReplicaSet's cells."""
    return [
        name(obj),
        get(obj, "spec", "replicas", default=0),
        get(obj, "status", "replicas", default=0),
        get(obj, "status", "readyReplicas", default=0),
        created(obj, now),
        *_wide(obj),
    ]


def stateful_set(obj: JsonObject, now: dt.datetime) -> list[Any]:
    """Return a StatefulSet's cells."""
    ready, wanted = (
        get(obj, "status", "readyReplicas", default=0),
        get(obj, "spec", "replicas", default=0),
    )
    return [name(obj), f"{ready}/{wanted}", created(obj, now), *_wide(obj)[:2]]


def daemon_set(obj: JsonObject, now: dt.datetime) -> list[Any]:
    """Return a DaemonSet's cells."""
    numbers = (
        "desiredNumberScheduled",
        "currentNumberScheduled",
        "numberReady",
        "updatedNumberScheduled",
        "numberAvailable",
    )
    return [
        name(obj),
        *(get(obj, "status", number, default=0) for number in numbers),
        labels(get(obj, "spec", "template", "spec", "nodeSelector")),
        created(obj, now),
        *_wide(obj),
    ]


def job(obj: JsonObject, now: dt.datetime) -> list[Any]:
    """Return a Job's cells."""
    done = get(obj, "status", "succeeded", default=0)
    wanted = get(obj, "spec", "completions")
    parallel = get(obj, "spec", "parallelism", default=0)
    completions = f"{done}/{wanted}" if wanted is not None else f"{done}/1"
    if wanted is None and parallel > 1:
        completions = f"{done}/1 of {parallel}"
    return [name(obj), _job_word(obj), completions, _took(obj, now), created(obj, now), *_wide(obj)]


def _job_word(obj: JsonObject) -> str:
    conditions = get(obj, "status", "conditions", default=[])
    true = {item.get("type") for item in conditions if item.get("status") == "True"}
    for word in ("Complete", "Failed"):
        if word in true:
            return word
    if obj["metadata"].get("deletionTimestamp"):
        return "Terminating"
    words = ("Suspended", "FailureTarget", "SuccessCriteriaMet")
    return next((word for word in words if word in true), "Running")


def _took(obj: JsonObject, now: dt.datetime) -> str:
    start = parse_time(get(obj, "status", "startTime", default=""))
    end = parse_time(get(obj, "status", "completionTime", default="")) or now
    return duration((end - start).total_seconds()) if start is not None else ""


def cron_job(obj: JsonObject, now: dt.datetime) -> list[Any]:
    """Return a CronJob's cells."""
    last = get(obj, "status", "lastScheduleTime")
    template = get(obj, "spec", "jobTemplate", "spec")
    return [
        name(obj),
        get(obj, "spec", "schedule", default=""),
        get(obj, "spec", "timeZone", default=NONE),
        get(obj, "spec", "suspend", default=False),
        len(get(obj, "status", "active", default=[])),
        age(last, now) if last else NONE,
        created(obj, now),
        *containers(get(template, "template")),
        selector(get(template, "selector")),
    ]


def revision(obj: JsonObject, now: dt.datetime) -> list[Any]:
    """Return a ControllerRevision's cells."""
    owners = [o for o in obj["metadata"].get("ownerReferences") or [] if o.get("controller")]
    controller = NONE
    if owners:
        group = owners[0].get("apiVersion", "").rpartition("/")[0]
        kind = owners[0].get("kind", "").lower()
        controller = (
            f"{kind}.{group}/{owners[0].get('name')}"
            if group
            else f"{kind}/{owners[0].get('name')}"
        )
    return [name(obj), controller, obj.get("revision", 0), created(obj, now)]


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
