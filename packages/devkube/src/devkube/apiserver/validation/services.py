"""Services and EndpointSlices: defaults, validation, immutable addresses."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from typing import Any

from devkube.apiserver.status import FieldError, duplicate, invalid, required, unsupported
from devkube.apiserver.validation import names
from devkube.apiserver.validation.pods import port_name
from kubeloop.objects.meta import JsonObject

_PORT_RANGE = "must be between 1 and 65535, inclusive"
_ADDRESS = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"
_FAMILIES = ("FQDN", "IPv4", "IPv6")


def default_service(obj: JsonObject) -> None:
    """Fill in a Service."""
    spec = obj.setdefault("spec", {})
    spec.setdefault("sessionAffinity", "None")
    spec.setdefault("type", "ClusterIP")
    if spec["sessionAffinity"] == "ClientIP":
        spec.setdefault("sessionAffinityConfig", {"clientIP": {"timeoutSeconds": 10800}})
    for port in spec.get("ports") or []:
        if port.get("targetPort") in (None, 0, ""):
            port["targetPort"] = port.get("port", 0)
    if spec["type"] in ("NodePort", "LoadBalancer"):
        spec.setdefault("externalTrafficPolicy", "Cluster")
    if spec["type"] == "LoadBalancer":
        spec.setdefault("allocateLoadBalancerNodePorts", True)
    if spec["type"] != "ExternalName":
        spec.setdefault("internalTrafficPolicy", "Cluster")


def prepare_create(obj: JsonObject) -> None:
    """Begin with an empty load balancer."""
    obj["status"] = {"loadBalancer": {}}


def prepare_update(new: JsonObject, old: JsonObject) -> None:
    """Keep what the server allocated if the update leaves it out, as old clients do."""
    after, before = new.setdefault("spec", {}), old.get("spec") or {}
    if after.get("type", "ClusterIP") == "ExternalName":
        if before.get("type") != "ExternalName":
            for name in ("clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"):
                after.pop(name, None)
        return
    for name in ("clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"):
        if not after.get(name) and before.get(name):
            after[name] = before[name]


def validate_service(obj: JsonObject) -> Iterator[FieldError]:
    """Judge a Service."""
    spec = obj.get("spec") or {}
    kind = spec.get("type", "ClusterIP")
    ports = spec.get("ports") or []
    headless = spec.get("clusterIP") == "None"
    if kind == "ExternalName":
        if not spec.get("externalName"):
            yield required("spec.externalName")
    elif not ports and not headless:
        yield required("spec.ports")
    if headless and kind in ("NodePort", "LoadBalancer"):
        yield invalid("spec.clusterIPs[0]", "None", f"may not be set to 'None' for {kind} services")
    address = spec.get("clusterIP", "")
    if address not in ("", "None") and not _is_address(address):
        yield invalid("spec.clusterIPs[0]", address, _ADDRESS)
    yield from names.check_labels(spec.get("selector") or {}, "spec.selector")
    yield from _validate_ports(ports)


def _is_address(text: str, *versions: int) -> bool:
    try:
        return ipaddress.ip_address(text).version in (versions or (4, 6))
    except ValueError:
        return False


def _validate_ports(ports: list[JsonObject]) -> Iterator[FieldError]:
    seen_names: set[str] = set()
    seen_ports: set[tuple[Any, Any]] = set()
    for index, port in enumerate(ports):
        field = f"spec.ports[{index}]"
        name = port.get("name", "")
        if not name and len(ports) > 1:
            yield required(f"{field}.name")
        elif name:
            yield from (invalid(f"{field}.name", name, text) for text in names.dns_label(name))
            if name in seen_names:
                yield duplicate(f"{field}.name", name)
            seen_names.add(name)
        number = port.get("port", 0)
        if not 1 <= number <= 65535:
            yield invalid(f"{field}.port", number, _PORT_RANGE)
        yield from _target_port(port.get("targetPort", 1), f"{field}.targetPort")
        pair = (number, port.get("protocol", "TCP"))
        if pair in seen_ports:
            yield duplicate(field, {"protocol": pair[1], "port": number})
        seen_ports.add(pair)


def _target_port(value: Any, field: str) -> Iterator[FieldError]:
    if isinstance(value, str):
        yield from (invalid(field, value, text) for text in port_name(value))
    elif not 1 <= value <= 65535:
        yield invalid(field, value, _PORT_RANGE)


def validate_update(new: JsonObject, old: JsonObject) -> Iterator[FieldError]:
    """Refuse another cluster address."""
    after, before = new.get("spec") or {}, old.get("spec") or {}
    if "ExternalName" in (after.get("type"), before.get("type")):
        return
    address = after.get("clusterIP")
    if before.get("clusterIP") and address != before["clusterIP"]:
        yield invalid("spec.clusterIPs[0]", [address], "may not change once set")


def default_slice(obj: JsonObject) -> None:
    """Fill in an EndpointSlice."""
    for endpoint in obj.get("endpoints") or []:
        endpoint.setdefault("conditions", {})
    for port in obj.get("ports") or []:
        port.setdefault("name", "")
        port.setdefault("protocol", "TCP")


def validate_slice(obj: JsonObject) -> Iterator[FieldError]:
    """Judge an EndpointSlice."""
    family = obj.get("addressType", "")
    if not family:
        yield required("addressType")
    elif family not in _FAMILIES:
        yield unsupported("addressType", family, _FAMILIES)
    for index, endpoint in enumerate(obj.get("endpoints") or []):
        yield from _endpoint(endpoint, family, f"endpoints[{index}]")
    ports = obj.get("ports") or []
    seen: set[str] = set()
    for index, port in enumerate(ports):
        name = port.get("name", "")
        if name in seen:
            yield duplicate(f"ports[{index}].name", name)
        seen.add(name)
        if name:
            yield from (invalid(f"ports[{index}].name", name, t) for t in names.dns_label(name))


def _endpoint(endpoint: JsonObject, family: str, field: str) -> Iterator[FieldError]:
    addresses = endpoint.get("addresses") or []
    if not addresses:
        yield required(f"{field}.addresses", "must contain at least 1 address")
    version = {"IPv4": 4, "IPv6": 6}.get(family)
    for index, address in enumerate(addresses):
        if version is not None and not _is_address(address, version):
            where = f"{field}.addresses[{index}]"
            yield invalid(where, address, f"must be an {family} address")
