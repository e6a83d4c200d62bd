"""Everything but workloads as tables: nodes, namespaces, Services, configuration, roles, events."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from devkube.apiserver.registry.resources import Column
from devkube.apiserver.tables.cells import NONE, UNKNOWN, age, created, get, labels, name, selector

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Callable

    from kubeloop.objects.meta import JsonObject


_NAME = Column(name="Name", format="name")
_AGE = Column(name="Age")

NODE = (
    _NAME,
    Column(name="Status"),
    Column(name="Roles"),
    _AGE,
    Column(name="Version"),
    *(
        Column(name=title, priority=1)
        for title in (
            "Internal-IP",
            "External-IP",
            "OS-Image",
            "Kernel-Version",
            "Container-Runtime",
        )
    ),
)
NAMESPACE = (_NAME, Column(name="Status"), _AGE)
EVENT = (
    Column(name="Last Seen"),
    Column(name="Type"),
    Column(name="Reason"),
    Column(name="Object"),
    Column(name="Subobject", priority=1),
    Column(name="Source", priority=1),
    Column(name="Message"),
    Column(name="First Seen", priority=1),
    Column(name="Count", priority=1),
    Column(name="Name", format="name", priority=1),
)
LEASE = (_NAME, Column(name="Holder"), _AGE)
AUTOSCALER = (
    _NAME,
    Column(name="Reference"),
    Column(name="Targets"),
    Column(name="MinPods"),
    Column(name="MaxPods"),
    Column(name="Replicas"),
    _AGE,
)
CONFIG_MAP = (_NAME, Column(name="Data"), _AGE)
SECRET = (_NAME, Column(name="Type"), Column(name="Data"), _AGE)
CREATED_AT = (_NAME, Column(name="Created At", type="date"))
BINDING = (
    _NAME,
    Column(name="Role"),
    _AGE,
    *(Column(name=title, priority=1) for title in ("Users", "Groups", "ServiceAccounts")),
)
BUDGET = (
    _NAME,
    Column(name="Min Available"),
    Column(name="Max Unavailable"),
    Column(name="Allowed Disruptions", type="integer"),
    _AGE,
)
CLAIM = (
    _NAME,
    *(
        Column(name=title)
        for title in (
            "Status",
            "Volume",
            "Capacity",
            "Access Modes",
            "StorageClass",
            "VolumeAttributesClass",
        )
    ),
    _AGE,
    Column(name="VolumeMode", priority=1),
)
_ROLE_LABEL = "node-role.kubernetes.io/"


def node(obj: JsonObject, now: dt.datetime) -> list[Any]:
    """Return a Node's cells."""
    conditions = {
        c.get("type"): c.get("status") for c in get(obj, "status", "conditions", default=[])
    }
    word = {"True": "Ready", None: "Unknown"}.get(conditions.get("Ready"), "NotReady")
    if get(obj, "spec", "unschedulable"):
        word += ",SchedulingDisabled"
    found = obj["metadata"].get("labels") or {}
    roles = sorted(
        label.removeprefix(_ROLE_LABEL) for label in found if label.startswith(_ROLE_LABEL)
    )
    info = get(obj, "status", "nodeInfo", default={})
    addresses = {
        a.get("type"): a.get("address") for a in get(obj, "status", "addresses", default=[])
    }
    return [
        name(obj),
        word,
        ",".join(roles) or NONE,
        created(obj, now),
        info.get("kubeletVersion", ""),
        addresses.get("InternalIP", NONE),
        addresses.get("ExternalIP", NONE),
        info.get("osImage", UNKNOWN),
        info.get("kernelVersion", UNKNOWN),
        info.get("containerRuntimeVersion", UNKNOWN),
    ]


def namespace(obj: JsonObject, now: dt.datetime) -> list[Any]:
    """Return a Namespace's cells."""
    return [name(obj), get(obj, "status", "phase", default=""), created(obj, now)]


def event(obj: JsonObject, now: dt.datetime) -> list[Any]:
    """Return an Event's cells."""
    first = obj.get("firstTimestamp") or obj.get("eventTime")
    last = get(obj, "series", "lastObservedTime") or obj.get("lastTimestamp") or first
    kind, target = (
        get(obj, "involvedObject", "kind", default="").lower(),
        get(obj, "involvedObject", "name"),
    )
    return [
        age(last, now),
        obj.get("type", ""),
        obj.get("reason", ""),
        f"{kind}/{target}" if target else kind,
        get(obj, "involvedObject", "fieldPath", default=""),
        _source(obj),
        str(obj.get("message", "")).strip(),
        age(first, now),
        get(obj, "series", "count") or obj.get("count") or 1,
        name(obj),
    ]


def _source(obj: JsonObject) -> str:
    component = get(obj, "source", "component", default="") or obj.get("reportingComponent", "")
    place = get(obj, "source", "host", default="") or obj.get("reportingInstance", "")
    return f"{component}, {place}" if place else component


def lease(obj: JsonObject, now: dt.datetime) -> list[Any]:
    """Return a Lease's cells."""
    return [name(obj), get(obj, "spec", "holderIdentity", default=""), created(obj, now)]


def autoscaler(obj: JsonObject, now: dt.datetime) -> list[Any]:
    """Return a HorizontalPodAutoscaler's cells."""
    reference = get(obj, "spec", "scaleTargetRef", default={})
    return [
        name(obj),
        f"{reference.get('kind', '')}/{reference.get('name', '')}",
        _targets(obj),
        str(get(obj, "spec", "minReplicas", default="<unset>")),
        get(obj, "spec", "maxReplicas", default=0),
        get(obj, "status", "currentReplicas", default=0),
        created(obj, now),
    ]


def _targets(obj: JsonObject) -> str:
    metrics = get(obj, "spec", "metrics", default=[])
    current = get(obj, "status", "currentMetrics", default=[])
    texts = [_target(m, current[i] if i < len(current) else {}) for i, m in enumerate(metrics)]
    if len(texts) > 2:
        return f"{', '.join(texts[:2])} + {len(texts) - 2} more..."
    return ", ".join(texts) or NONE


def _target(metric: JsonObject, current: JsonObject) -> str:
    kind = str(metric.get("type", ""))
    key = kind[:1].lower() + kind[1:]
    target, found = get(metric, key, "target", default={}), get(current, key, "current", default={})
    prefix = f"{get(metric, key, 'name')}: " if get(metric, key, "name") else ""
    if "averageUtilization" in target:
        value = found.get("averageUtilization")
        shown = UNKNOWN if value is None else f"{value}%"
        return f"{prefix}{shown}/{target['averageUtilization']}%"
    if "averageValue" in target:
        suffix = "" if prefix or kind == "Pods" else " (avg)"
        return f"{prefix}{found.get('averageValue', UNKNOWN)}/{target['averageValue']}{suffix}"
    return f"{prefix}{found.get('value', UNKNOWN)}/{target.get('value', '<auto>')}"


def config_map(obj: JsonObject, now: dt.datetime) -> list[Any]:
    """Return a ConfigMap's cells."""
    size = len(obj.get("data") or {}) + len(obj.get("binaryData") or {})
    return [name(obj), size, created(obj, now)]


def secret(obj: JsonObject, now: dt.datetime) -> list[Any]:
    """Return a Secret's cells."""
    return [name(obj), obj.get("type", ""), len(obj.get("data") or {}), created(obj, now)]


def created_at(obj: JsonObject, now: dt.datetime) -> list[Any]:
    """Return the cells of kinds that show when they were made."""
    return [name(obj), obj["metadata"].get("creationTimestamp", "")]


def binding(obj: JsonObject, now: dt.datetime) -> list[Any]:
    """Return the cells of a role binding."""
    subjects = obj.get("subjects") or []

    def named(kind: str, show: Callable[[JsonObject], str]) -> str:
        return ", ".join(show(subject) for subject in subjects if subject.get("kind") == kind)

    return [
        name(obj),
        f"{get(obj, 'roleRef', 'kind', default='')}/{get(obj, 'roleRef', 'name', default='')}",
        created(obj, now),
        named("User", lambda subject: subject.get("name", "")),
        named("Group", lambda subject: subject.get("name", "")),
        named("ServiceAccount", lambda s: f"{s.get('namespace', '')}/{s.get('name', '')}"),
    ]


def budget(obj: JsonObject, now: dt.datetime) -> list[Any]:
    """Return a PodDisruptionBudget's cells."""
    return [
        name(obj),
        str(get(obj, "spec", "minAvailable", default="N/A")),
        str(get(obj, "spec", "maxUnavailable", default="N/A")),
        get(obj, "status", "disruptionsAllowed", default=0),
        created(obj, now),
    ]


_MODES = {
    "ReadWriteOnce": "RWO",
    "ReadOnlyMany": "ROX",
    "ReadWriteMany": "RWX",
    "ReadWriteOncePod": "RWOP",
}


def claim(obj: JsonObject, now: dt.datetime) -> list[Any]:
    """Return a PersistentVolumeClaim's cells."""
    phase = get(obj, "status", "phase", default="")
    modes = get(obj, "status", "accessModes", default=[])
    return [
        name(obj),
        "Terminating" if obj["metadata"].get("deletionTimestamp") else phase,
        get(obj, "spec", "volumeName", default=""),
        str(get(obj, "status", "capacity", "storage", default="")),
        ",".join(_MODES.get(mode, mode) for mode in modes),
        get(obj, "spec", "storageClassName", default=""),
        get(obj, "spec", "volumeAttributesClassName", default="<unset>"),
        created(obj, now),
        get(obj, "spec", "volumeMode", default="<unset>"),
    ]


_SHOWN = 3

SERVICE = (
    _NAME,
    Column(name="Type"),
    Column(name="Cluster-IP"),
    Column(name="External-IP"),
    Column(name="Port(s)"),
    _AGE,
    Column(name="Selector", priority=1),
)
SLICE = (_NAME, Column(name="AddressType"), Column(name="Ports"), Column(name="Endpoints"), _AGE)
ENDPOINTS = (_NAME, Column(name="Endpoints"), _AGE)
INGRESS = (
    _NAME,
    Column(name="Class"),
    Column(name="Hosts"),
    Column(name="Address"),
    Column(name="Ports"),
    _AGE,
)
NETWORK_POLICY = (_NAME, Column(name="Pod-Selector"), _AGE)


def service(obj: JsonObject, now: dt.datetime) -> list[Any]:
    """Return a Service's cells."""
    return [
        name(obj),
        get(obj, "spec", "type", default=""),
        get(obj, "spec", "clusterIP", default="") or NONE,
        _external(obj),
        _ports(get(obj, "spec", "ports", default=[])),
        created(obj, now),
        labels(get(obj, "spec", "selector")),
    ]


def _external(obj: JsonObject) -> str:
    extra = ",".join(get(obj, "spec", "externalIPs", default=[]))
    match get(obj, "spec", "type"):
        case "ExternalName":
            return str(get(obj, "spec", "externalName", default=""))
        case "LoadBalancer":
            found = get(obj, "status", "loadBalancer", "ingress", default=[])
            given = ",".join(item.get("ip") or item.get("hostname", "") for item in found)
            return ",".join(filter(None, (given, extra))) or "<pending>"
        case _:
            return extra or NONE


def _ports(ports: list[JsonObject]) -> str:
    texts = []
    for port in ports:
        number, protocol = port.get("port"), port.get("protocol", "TCP")
        node_port = port.get("nodePort")
        texts.append(f"{number}:{node_port}/{protocol}" if node_port else f"{number}/{protocol}")
    return ",".join(texts) or NONE


def endpoint_slice(obj: JsonObject, now: dt.datetime) -> list[Any]:
    """Return an EndpointSlice's cells."""
    ports = [_port_text(port) for port in obj.get("ports") or []]
    addresses = [a for item in obj.get("endpoints") or [] for a in item.get("addresses") or []]
    return [
        name(obj),
        obj.get("addressType", ""),
        _some(ports) or "<unset>",
        _some(addresses) or "<unset>",
        created(obj, now),
    ]


def _port_text(port: JsonObject) -> str:
    return str(port.get("port") or port.get("name") or "*")


def _some(items: list[str]) -> str:
    if len(items) <= _SHOWN:
        return ",".join(items)
    return f"{','.join(items[:_SHOWN])} + {len(items) - _SHOWN} more..."


def endpoints(obj: JsonObject, now: dt.datetime) -> list[Any]:
    """Return the cells of the old Endpoints."""
    pairs = [
        f"{address.get('ip')}:{port.get('port')}"
        for subset in obj.get("subsets") or []
        for port in subset.get("ports") or []
        for address in subset.get("addresses") or []
    ]
    return [name(obj), _some(pairs) or NONE, created(obj, now)]


def ingress(obj: JsonObject, now: dt.datetime) -> list[Any]:
    """Return an Ingress's cells."""
    rules = get(obj, "spec", "rules", default=[])
    found = get(obj, "status", "loadBalancer", "ingress", default=[])
    return [
        name(obj),
        get(obj, "spec", "ingressClassName", default=NONE),
        ",".join(rule.get("host") or "*" for rule in rules) or "*",
        ",".join(item.get("ip") or item.get("hostname", "") for item in found),
        "80, 443" if get(obj, "spec", "tls") else "80",
        created(obj, now),
    ]


def network_policy(obj: JsonObject, now: dt.datetime) -> list[Any]:
    """Return a NetworkPolicy's cells."""
    return [name(obj), selector(get(obj, "spec", "podSelector")), created(obj, now)]
