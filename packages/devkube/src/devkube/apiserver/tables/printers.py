"""Printers: columns of a kind, and the cells of an object.

Kubernetes' own kinds have functions; columns of custom kinds have a JSONPath of fields, indices,
`[*]` and `[?(@.a=="b")]` filters.
"""

from __future__ import annotations

import dataclasses
import json
import re
from typing import TYPE_CHECKING, Any

from devkube.apiserver.registry.resources import Column
from devkube.apiserver.tables import cluster, workloads
from devkube.apiserver.tables import cluster as network
from devkube.apiserver.tables.cells import age
from devkube.apiserver.tables.workloads import POD_COLUMNS, pod_cells

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Callable, Mapping

    from devkube.apiserver.registry.resources import ServedResource, ServedVersion
    from kubeloop.objects.meta import JsonObject


if TYPE_CHECKING:
    Cells = Callable[[JsonObject, dt.datetime], list[Any]]

PRINTERS: Mapping[str, tuple[tuple[Column, ...], Cells]] = {
    "Pod": (POD_COLUMNS, pod_cells),
    "Deployment": (workloads.DEPLOYMENT, workloads.deployment),
    "ReplicaSet": (workloads.REPLICA_SET, workloads.replica_set),
    "ReplicationController": (workloads.REPLICA_SET, workloads.replica_set),
    "StatefulSet": (workloads.STATEFUL_SET, workloads.stateful_set),
    "DaemonSet": (workloads.DAEMON_SET, workloads.daemon_set),
    "Job": (workloads.JOB, workloads.job),
    "CronJob": (workloads.CRON_JOB, workloads.cron_job),
    "ControllerRevision": (workloads.REVISION, workloads.revision),
    "Service": (network.SERVICE, network.service),
    "EndpointSlice": (network.SLICE, network.endpoint_slice),
    "Endpoints": (network.ENDPOINTS, network.endpoints),
    "Ingress": (network.INGRESS, network.ingress),
    "NetworkPolicy": (network.NETWORK_POLICY, network.network_policy),
    "Node": (cluster.NODE, cluster.node),
    "Namespace": (cluster.NAMESPACE, cluster.namespace),
    "Event": (cluster.EVENT, cluster.event),
    "Lease": (cluster.LEASE, cluster.lease),
    "HorizontalPodAutoscaler": (cluster.AUTOSCALER, cluster.autoscaler),
    "ConfigMap": (cluster.CONFIG_MAP, cluster.config_map),
    "Secret": (cluster.SECRET, cluster.secret),
    "CustomResourceDefinition": (cluster.CREATED_AT, cluster.created_at),
    "Role": (cluster.CREATED_AT, cluster.created_at),
    "ClusterRole": (cluster.CREATED_AT, cluster.created_at),
    "RoleBinding": (cluster.BINDING, cluster.binding),
    "ClusterRoleBinding": (cluster.BINDING, cluster.binding),
    "PodDisruptionBudget": (cluster.BUDGET, cluster.budget),
    "PersistentVolumeClaim": (cluster.CLAIM, cluster.claim),
}


_STEP = re.compile(
    r"""
      \.(?P<field>(?:[^.\[\]\\]|\\.)+)
    | \['(?P<quoted>[^']*)'\]
    | \[(?P<index>-?\d+)\]
    | (?P<all>\[\*\]|\.\*)
    | \[\?\(\s*@(?P<left>(?:\.[\w\-\\./]+)+)\s*(?P<sign>==|!=)\s*(?P<right>"[^"]*"|'[^']*'|[\w.\-]+)\s*\)\]
    """,
    re.VERBOSE,
)

JsonPath = tuple[tuple[str, Any], ...]


def parse_path(text: str) -> JsonPath:
    """Parse a path; ValueError for syntax that printer columns do not have."""
    text = text.strip()
    if text.startswith("{") and text.endswith("}"):
        text = text[1:-1]
    if text and text[0] not in ".[":
        text = f".{text}"
    steps: list[tuple[str, Any]] = []
    position = 0
    while position < len(text):
        found = _STEP.match(text, position)
        if found is None:
            raise ValueError(f"{text!r} is not a JSON path at {text[position:]!r}")
        steps.append(_step(found))
        position = found.end()
    return tuple(steps)


def _step(found: re.Match[str]) -> tuple[str, Any]:
    if found["field"] is not None:
        return "field", re.sub(r"\\(.)", r"\1", found["field"])
    if found["quoted"] is not None:
        return "field", found["quoted"]
    if found["index"] is not None:
        return "index", int(found["index"])
    if found["all"] is not None:
        return "all", None
    right = found["right"]
    value = right[1:-1] if right[0] in "\"'" else json.loads(right)
    return "filter", (parse_path(found["left"]), found["sign"] == "==", value)


def find_matches(path: JsonPath, value: Any) -> list[Any]:
    """Return every match."""
    found = [value]
    for kind, argument in path:
        found = [child for item in found for child in _children(kind, argument, item)]
    return found


def first_match(path: JsonPath, value: Any) -> Any:
    """Return the first match, or None."""
    found = find_matches(path, value)
    return found[0] if found else None


def _children(kind: str, argument: Any, value: Any) -> list[Any]:
    match kind:
        case "field":
            return [value[argument]] if isinstance(value, dict) and argument in value else []
        case "index":
            inside = isinstance(value, list) and -len(value) <= argument < len(value)
            return [value[argument]] if inside else []
        case "all":
            if isinstance(value, list):
                return value
            return list(value.values()) if isinstance(value, dict) else []
        case _:
            left, equal, right = argument
            items = value if isinstance(value, list) else []
            return [item for item in items if (first_match(left, item) == right) is equal]


def show_value(value: Any) -> str:
    """Show a value that is no text."""
    return json.dumps(value, separators=(",", ":"))


NAME = Column(name="Name", format="name")
AGE = Column(name="Age")


@dataclasses.dataclass(frozen=True, slots=True)
class TablePrinter:
    """Columns, and a function from an object and the time to its cells."""

    columns: tuple[Column, ...]
    cells: Callable[[JsonObject, dt.datetime], list[Any]]


def printer_for(resource: ServedResource, served: ServedVersion) -> TablePrinter:
    """Return the printer of a resource's version."""
    if resource.custom:
        return _custom(served)
    known = PRINTERS.get(resource.kind)
    if known is None:
        return TablePrinter((NAME, AGE), lambda obj, now: [_name(obj), age(_created(obj), now)])
    columns, cells = known
    return TablePrinter(columns, cells)


def _custom(served: ServedVersion) -> TablePrinter:
    extra = served.columns or (Column(name="Age", type="date", path=".metadata.creationTimestamp"),)
    paths = [parse_path(column.path) for column in extra]

    def cells(obj: JsonObject, now: dt.datetime) -> list[Any]:
        values = [
            _custom_cell(first_match(path, obj), column.type, now)
            for path, column in zip(paths, extra, strict=True)
        ]
        return [_name(obj), *values]

    return TablePrinter((NAME, *extra), cells)


def _custom_cell(value: Any, kind: str, now: dt.datetime) -> Any:
    if value is None:
        return None
    match kind:
        case "date":
            return age(value, now) if isinstance(value, str) else "<unknown>"
        case "integer":
            return int(value) if isinstance(value, int | float) else None
        case "number":
            return value if isinstance(value, int | float) else None
        case "boolean":
            return value if isinstance(value, bool) else None
        case _:
            return value if isinstance(value, str) else show_value(value)


def _name(obj: JsonObject) -> str:
    return str(obj["metadata"].get("name", ""))


def _created(obj: JsonObject) -> str:
    return str(obj["metadata"].get("creationTimestamp", ""))


class Table:
    """A printer at one moment."""

    def __init__(self, printer: TablePrinter, *, now: dt.datetime) -> None:
        self._printer = printer
        self._now = now

    def columns(self) -> list[JsonObject]:
        """Return the column definitions."""
        return [
            {
                "name": column.name,
                "type": column.type,
                "format": column.format,
                "description": column.description or column.name,
                "priority": column.priority,
            }
            for column in self._printer.columns
        ]

    def cells(self, obj: JsonObject) -> list[Any]:
        """Return an object's cells."""
        return self._printer.cells(obj, self._now)
