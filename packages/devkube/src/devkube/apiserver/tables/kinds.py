"""The tables of Kubernetes' own kinds, as data: a title, and a path or a function for the cell.

Kinds that no controller of the dev cluster works on show their name and age.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from devkube.apiserver.registry.resources import TableColumn
from devkube.apiserver.tables.cells import (
    NONE,
    UNKNOWN,
    age,
    created,
    get,
    labels,
    parse_time,
    selector,
)
from kubeloop.objects.meta import JsonObject

Cell: TypeAlias = Callable[[JsonObject, dt.datetime], Any]

_ROLE_LABEL = "node-role.kubernetes.io/"
_SHOWN = 3


def _pod_ready(pod: JsonObject, _now: dt.datetime) -> str:
    counted = [] if _initial_word(pod) is not None else _running(pod)
    total = len(get(pod, "spec", "containers", default=[]))
    return f"{sum(1 for item in counted if item.get('ready'))}/{total}"


def _running(pod: JsonObject) -> list[JsonObject]:
    return list(get(pod, "status", "containerStatuses", default=[]))


def _initial(pod: JsonObject) -> list[JsonObject]:
    return list(get(pod, "status", "initContainerStatuses", default=[]))


def _restarts(pod: JsonObject, now: dt.datetime) -> str:
    """Show how often containers were started again, and when last."""
    statuses = _initial(pod) if _initial_word(pod) is not None else _running(pod)
    count = sum(item.get("restartCount", 0) for item in statuses)
    ends = [get(item, "lastState", "terminated", "finishedAt", default="") for item in statuses]
    last = max((end for end in ends if end and parse_time(end)), default="")
    return f"{count} ({age(last, now)} ago)" if count and last else str(count)


def _gates(pod: JsonObject, _now: dt.datetime) -> str:
    gates = get(pod, "spec", "readinessGates", default=[])
    if not gates:
        return NONE
    conditions = get(pod, "status", "conditions", default=[])
    true = {item.get("type") for item in conditions if item.get("status") == "True"}
    return f"{sum(1 for gate in gates if gate.get('conditionType') in true)}/{len(gates)}"


def _pod_word(pod: JsonObject) -> str:
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


@dataclasses.dataclass(frozen=True, slots=True)
class PrintedColumn:
    """A column, and where its cells come from."""

    column: TableColumn
    cell: Cell


def _col(
    name: str, source: str | Cell, default: Any = "", *, wide: bool = False, **more: str
) -> PrintedColumn:
    """Return a column; a `source` that is text is a path of fields, with a default."""
    column = TableColumn(name=name, priority=1 if wide else 0, **more)
    if not isinstance(source, str):
        return PrintedColumn(column, source)
    path = source.split(".")

    def cell(obj: JsonObject, _now: dt.datetime) -> Any:
        found = get(obj, *path)
        return default if found in (None, "") else found

    return PrintedColumn(column, cell)


def _number(name: str, path: str) -> PrintedColumn:
    return _col(name, path, 0, type="integer")


def _ready(obj: JsonObject, _now: dt.datetime) -> str:
    ready = get(obj, "status", "readyReplicas", default=0)
    return f"{ready}/{get(obj, 'spec', 'replicas', default=0)}"


def _containers(field: str) -> Cell:
    def cell(obj: JsonObject, _now: dt.datetime) -> str:
        found = get(obj, "spec", "template", "spec", "containers", default=[])
        return ",".join(container.get(field, "") for container in found)

    return cell


def _node_status(obj: JsonObject, _now: dt.datetime) -> str:
    conditions = get(obj, "status", "conditions", default=[])
    ready = {c.get("type"): c.get("status") for c in conditions}.get("Ready")
    word = {"True": "Ready", None: "Unknown"}.get(ready, "NotReady")
    return f"{word},SchedulingDisabled" if get(obj, "spec", "unschedulable") else word


def _node_roles(obj: JsonObject, _now: dt.datetime) -> str:
    found = obj["metadata"].get("labels") or {}
    roles = (name.removeprefix(_ROLE_LABEL) for name in found if name.startswith(_ROLE_LABEL))
    return ",".join(sorted(roles)) or NONE


def _node_address(kind: str) -> Cell:
    def cell(obj: JsonObject, _now: dt.datetime) -> str:
        addresses = get(obj, "status", "addresses", default=[])
        return next((str(a.get("address")) for a in addresses if a.get("type") == kind), NONE)

    return cell


def _first_seen(obj: JsonObject) -> Any:
    return obj.get("firstTimestamp") or obj.get("eventTime")


def _last_seen(obj: JsonObject, now: dt.datetime) -> str:
    last = get(obj, "series", "lastObservedTime") or obj.get("lastTimestamp")
    return age(last or _first_seen(obj), now)


def _involved(obj: JsonObject, _now: dt.datetime) -> str:
    kind = get(obj, "involvedObject", "kind", default="").lower()
    target = get(obj, "involvedObject", "name")
    return f"{kind}/{target}" if target else kind


def _event_source(obj: JsonObject, _now: dt.datetime) -> str:
    component = get(obj, "source", "component", default="") or obj.get("reportingComponent", "")
    host = get(obj, "source", "host", default="") or obj.get("reportingInstance", "")
    return f"{component}, {host}" if host else component


def _role(obj: JsonObject, _now: dt.datetime) -> str:
    found = obj.get("roleRef") or {}
    return f"{found.get('kind', '')}/{found.get('name', '')}"


def _subjects(kind: str) -> Cell:
    def cell(obj: JsonObject, _now: dt.datetime) -> str:
        found = [s for s in obj.get("subjects") or [] if s.get("kind") == kind]
        if kind == "ServiceAccount":
            return ", ".join(f"{s.get('namespace', '')}/{s.get('name', '')}" for s in found)
        return ", ".join(s.get("name", "") for s in found)

    return cell


def _external_address(obj: JsonObject, _now: dt.datetime) -> str:
    match get(obj, "spec", "type"):
        case "ExternalName":
            return str(get(obj, "spec", "externalName", default=""))
        case "LoadBalancer":
            return "<pending>"
        case _:
            return NONE


def _service_ports(obj: JsonObject, _now: dt.datetime) -> str:
    ports = get(obj, "spec", "ports", default=[])
    return ",".join(f"{p.get('port')}/{p.get('protocol', 'TCP')}" for p in ports) or NONE


def _some(items: list[str], empty: str) -> str:
    more = f" + {len(items) - _SHOWN} more..." if len(items) > _SHOWN else ""
    return f"{','.join(items[:_SHOWN])}{more}" or empty


def _slice_ports(obj: JsonObject, _now: dt.datetime) -> str:
    ports = [str(port.get("port") or port.get("name") or "*") for port in obj.get("ports") or []]
    return _some(ports, "<unset>")


def _slice_addresses(obj: JsonObject, _now: dt.datetime) -> str:
    endpoints = obj.get("endpoints") or []
    return _some([a for item in endpoints for a in item.get("addresses") or []], "<unset>")


_NAME = _col("Name", "metadata.name", format="name")
_AGE = _col("Age", created)
PLAIN = (_NAME, _AGE)
_STATUS = _col("Status", "status.phase")
_WIDE = (
    _col("Containers", _containers("name"), wide=True),
    _col("Images", _containers("image"), wide=True),
    _col("Selector", lambda obj, _now: selector(get(obj, "spec", "selector")), wide=True),
)
_REPLICA_SET = (
    _NAME,
    _number("Desired", "spec.replicas"),
    _number("Current", "status.replicas"),
    _number("Ready", "status.readyReplicas"),
    _AGE,
    *_WIDE,
)
_CREATED_AT = (_NAME, _col("Created At", "metadata.creationTimestamp", type="date"))
_BINDING = (
    _NAME,
    _col("Role", _role),
    _AGE,
    _col("Users", _subjects("User"), wide=True),
    _col("Groups", _subjects("Group"), wide=True),
    _col("ServiceAccounts", _subjects("ServiceAccount"), wide=True),
)

KINDS: Mapping[str, tuple[PrintedColumn, ...]] = {
    "Pod": (
        _NAME,
        _col("Ready", _pod_ready),
        _col("Status", lambda obj, _now: _pod_word(obj)),
        _col("Restarts", _restarts),
        _AGE,
        _col("IP", "status.podIP", NONE, wide=True),
        _col("Node", "spec.nodeName", NONE, wide=True),
        _col("Nominated Node", "status.nominatedNodeName", NONE, wide=True),
        _col("Readiness Gates", _gates, wide=True),
    ),
    "Deployment": (
        _NAME,
        _col("Ready", _ready),
        _col("Up-to-date", "status.updatedReplicas", 0),
        _col("Available", "status.availableReplicas", 0),
        _AGE,
        *_WIDE,
    ),
    "ReplicaSet": _REPLICA_SET,
    "StatefulSet": (_NAME, _col("Ready", _ready), _AGE, *_WIDE[:2]),
    "ControllerRevision": (_NAME, _number("Revision", "revision"), _AGE),
    "Service": (
        _NAME,
        _col("Type", "spec.type"),
        _col("Cluster-IP", "spec.clusterIP", NONE),
        _col("External-IP", _external_address),
        _col("Port(s)", _service_ports),
        _AGE,
        _col("Selector", lambda obj, _now: labels(get(obj, "spec", "selector")), wide=True),
    ),
    "EndpointSlice": (
        _NAME,
        _col("AddressType", "addressType"),
        _col("Ports", _slice_ports),
        _col("Endpoints", _slice_addresses),
        _AGE,
    ),
    "Node": (
        _NAME,
        _col("Status", _node_status),
        _col("Roles", _node_roles),
        _AGE,
        _col("Version", "status.nodeInfo.kubeletVersion"),
        _col("Internal-IP", _node_address("InternalIP"), wide=True),
        _col("External-IP", _node_address("ExternalIP"), wide=True),
        _col("OS-Image", "status.nodeInfo.osImage", UNKNOWN, wide=True),
        _col("Kernel-Version", "status.nodeInfo.kernelVersion", UNKNOWN, wide=True),
        _col("Container-Runtime", "status.nodeInfo.containerRuntimeVersion", UNKNOWN, wide=True),
    ),
    "Namespace": (_NAME, _STATUS, _AGE),
    "Event": (
        _col("Last Seen", _last_seen),
        _col("Type", "type"),
        _col("Reason", "reason"),
        _col("Object", _involved),
        _col("Subobject", "involvedObject.fieldPath", wide=True),
        _col("Source", _event_source, wide=True),
        _col("Message", lambda obj, _now: str(obj.get("message", "")).strip()),
        _col("First Seen", lambda obj, now: age(_first_seen(obj), now), wide=True),
        _col(
            "Count",
            lambda obj, _now: get(obj, "series", "count") or obj.get("count") or 1,
            wide=True,
        ),
        _col("Name", "metadata.name", wide=True, format="name"),
    ),
    "Lease": (_NAME, _col("Holder", "spec.holderIdentity"), _AGE),
    "ConfigMap": (
        _NAME,
        _col(
            "Data",
            lambda obj, _now: len({**(obj.get("data") or {}), **(obj.get("binaryData") or {})}),
        ),
        _AGE,
    ),
    "Secret": (
        _NAME,
        _col("Type", "type"),
        _col("Data", lambda obj, _now: len(obj.get("data") or {})),
        _AGE,
    ),
    "CustomResourceDefinition": _CREATED_AT,
    "Role": _CREATED_AT,
    "ClusterRole": _CREATED_AT,
    "RoleBinding": _BINDING,
    "ClusterRoleBinding": _BINDING,
}
