"""Services, endpoints and ingresses as tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from elasti.devcluster.apiserver.resources import Column
from elasti.devcluster.apiserver.tables.cells import NONE, created, get, labels, name, selector

if TYPE_CHECKING:
    import datetime as dt

    from kubeloop.objects.meta import JsonObject

_NAME = Column(name="Name", format="name")
_AGE = Column(name="Age")
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
