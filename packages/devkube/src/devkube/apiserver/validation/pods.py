"""Pods and pod templates: defaults, validation, what an update may change."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from typing import Any

from devkube.apiserver.status import FieldError, duplicate, forbidden, invalid, missing, required
from devkube.apiserver.validation import names
from kubeloop.objects.meta import JsonObject

_PROBES = ("livenessProbe", "readinessProbe", "startupProbe")
_HANDLERS = ("exec", "httpGet", "tcpSocket", "grpc")
_VOLUME_MODE = 0o644
_PORT_NAME = re.compile(r"(?=.*[a-z])[a-z0-9]+(-[a-z0-9]+)*")
_NON_NEGATIVE = "must be greater than or equal to 0"
_MUTABLE = (
    "`spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,"
    "`spec.tolerations` (only additions to existing tolerations),"
    "`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"
)


def default_template(template: JsonObject) -> None:
    """Fill in a pod template."""
    template.setdefault("metadata", {})
    default_spec(template.setdefault("spec", {}))


def default_pod(pod: JsonObject) -> None:
    """Fill in a pod; limits become requests where those are missing."""
    spec = pod.setdefault("spec", {})
    default_spec(spec)
    for container in _containers(spec):
        resources = container["resources"]
        for name, value in (resources.get("limits") or {}).items():
            resources.setdefault("requests", {}).setdefault(name, value)
    spec.setdefault("serviceAccountName", "default")
    spec["serviceAccount"] = spec["serviceAccountName"]
    spec.setdefault("enableServiceLinks", True)
    spec.setdefault("preemptionPolicy", "PreemptLowerPriority")
    spec.setdefault("priority", 0)
    spec.setdefault("tolerations", [])
    for key in ("not-ready", "unreachable"):
        _tolerate(spec["tolerations"], f"node.kubernetes.io/{key}")


def _tolerate(tolerations: list[JsonObject], key: str) -> None:
    if not any(item.get("key") in (key, None, "") for item in tolerations):
        tolerations.append(
            {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
        )


def default_spec(spec: JsonObject) -> None:
    """Fill in a pod's specification, as templates and pods share it."""
    spec.setdefault("restartPolicy", "Always")
    spec.setdefault("terminationGracePeriodSeconds", 30)
    spec.setdefault("dnsPolicy", "ClusterFirst")
    spec.setdefault("securityContext", {})
    spec.setdefault("schedulerName", "default-scheduler")
    if spec.get("serviceAccount") and not spec.get("serviceAccountName"):
        spec["serviceAccountName"] = spec["serviceAccount"]
    if spec.get("serviceAccountName"):
        spec["serviceAccount"] = spec["serviceAccountName"]
    for container in _containers(spec):
        _default_container(container)
    for volume in spec.get("volumes") or []:
        _default_volume(volume)


def _containers(spec: JsonObject) -> Iterator[JsonObject]:
    for group in ("initContainers", "containers"):
        yield from spec.get(group) or ()


def _default_container(container: JsonObject) -> None:
    container.setdefault("resources", {})
    container.setdefault("terminationMessagePath", "/dev/termination-log")
    container.setdefault("terminationMessagePolicy", "File")
    container.setdefault("imagePullPolicy", _pull_policy(container.get("image", "")))
    for name in _PROBES:
        if name in container:
            _default_probe(container[name], name)
    for hook in (container.get("lifecycle") or {}).values():
        if isinstance(hook, dict) and "httpGet" in hook:
            _default_http(hook["httpGet"])
    for variable in container.get("env") or []:
        reference = (variable.get("valueFrom") or {}).get("fieldRef")
        if reference is not None:
            reference.setdefault("apiVersion", "v1")


def _pull_policy(image: str) -> str:
    name = image.rpartition("/")[2]
    if "@" in name:
        return "IfNotPresent"
    tag = name.partition(":")[2]
    return "Always" if tag in ("", "latest") else "IfNotPresent"


def _default_probe(probe: JsonObject, name: str) -> None:
    probe.setdefault("timeoutSeconds", 1)
    probe.setdefault("periodSeconds", 10)
    probe.setdefault("successThreshold", 1)
    probe.setdefault("failureThreshold", 3)
    if "httpGet" in probe:
        _default_http(probe["httpGet"])
    if "grpc" in probe:
        probe["grpc"].setdefault("service", "")


def _default_http(action: JsonObject) -> None:
    if not action.get("path"):
        action["path"] = "/"
    action.setdefault("scheme", "HTTP")


def _default_volume(volume: JsonObject) -> None:
    if set(volume) == {"name"}:
        volume["emptyDir"] = {}
    for source in ("secret", "configMap", "projected", "downwardAPI"):
        if source in volume:
            volume[source].setdefault("defaultMode", _VOLUME_MODE)
    for source in (volume.get("projected") or {}).get("sources") or []:
        if "serviceAccountToken" in source:
            source["serviceAccountToken"].setdefault("expirationSeconds", 3600)
    if "hostPath" in volume:
        volume["hostPath"].setdefault("type", "")


def prepare_create(pod: JsonObject) -> None:
    """Begin a pod's life: pending, with the class that its resources give it."""
    pod["status"] = {"phase": "Pending", "qosClass": quality(pod.get("spec") or {})}


def quality(spec: JsonObject) -> str:
    """Return the quality-of-service class."""
    resources = [container.get("resources") or {} for container in _containers(spec)]
    limits = [item.get("limits") or {} for item in resources]
    requests = [item.get("requests") or {} for item in resources]
    if not any(limits) and not any(requests):
        return "BestEffort"
    exact = all(
        limit.get("cpu")
        and limit.get("memory")
        and all(request.get(n, v) == v for n, v in limit.items())
        for limit, request in zip(limits, requests, strict=True)
    )
    return "Guaranteed" if exact else "Burstable"


def validate_pod(pod: JsonObject) -> Iterator[FieldError]:
    """Judge a pod."""
    yield from validate_spec(pod.get("spec") or {}, "spec")


def validate_template(template: JsonObject, field: str) -> Iterator[FieldError]:
    """Judge a pod template."""
    labels = (template.get("metadata") or {}).get("labels") or {}
    yield from names.check_labels(labels, f"{field}.labels")
    yield from validate_spec(template.get("spec") or {}, f"{field}.spec")


def validate_spec(spec: JsonObject, field: str) -> Iterator[FieldError]:
    """Judge a pod's specification."""
    if not spec.get("containers"):
        yield required(f"{field}.containers")
    seen: set[str] = set()
    volumes = {volume.get("name") for volume in spec.get("volumes") or []}
    for group in ("initContainers", "containers"):
        for index, container in enumerate(spec.get(group) or []):
            where = f"{field}.{group}[{index}]"
            yield from _validate_container(container, where, volumes)
            if container.get("name") in seen:
                yield duplicate(f"{where}.name", container["name"])
            seen.add(container.get("name", ""))
    yield from _validate_volumes(spec.get("volumes") or [], f"{field}.volumes")
    grace = spec.get("terminationGracePeriodSeconds", 0)
    if grace < 0:
        yield invalid(f"{field}.terminationGracePeriodSeconds", grace, _NON_NEGATIVE)


def _validate_container(
    container: JsonObject, field: str, volumes: set[Any]
) -> Iterator[FieldError]:
    name = container.get("name", "")
    if name:
        yield from (invalid(f"{field}.name", name, text) for text in names.dns_label(name))
    if not container.get("image"):
        yield required(f"{field}.image")
    yield from _validate_ports(container.get("ports") or [], f"{field}.ports")
    for index, mount in enumerate(container.get("volumeMounts") or []):
        if mount.get("name") not in volumes:
            yield missing(f"{field}.volumeMounts[{index}].name", mount.get("name"))
    for probe in _PROBES:
        if probe in container:
            yield from _validate_probe(container[probe], f"{field}.{probe}")


def _validate_ports(ports: list[JsonObject], field: str) -> Iterator[FieldError]:
    seen: set[str] = set()
    for index, port in enumerate(ports):
        where = f"{field}[{index}]"
        number = port.get("containerPort", 0)
        if not number:
            yield required(f"{where}.containerPort")
        elif not 1 <= number <= 65535:
            yield invalid(
                f"{where}.containerPort", number, "must be between 1 and 65535, inclusive"
            )
        name = port.get("name")
        if not name:
            continue
        yield from (invalid(f"{where}.name", name, text) for text in port_name(name))
        if name in seen:
            yield duplicate(f"{where}.name", name)
        seen.add(name)


def port_name(name: str) -> list[str]:
    """Say what keeps a name from being a port's."""
    if len(name) > 15:
        return ["must be no more than 15 characters"]
    if _PORT_NAME.fullmatch(name) is None:
        text = "must be letters (a-z), at least one, digits, and single hyphens in between"
        return [text]
    return []


def _validate_probe(probe: JsonObject, field: str) -> Iterator[FieldError]:
    handlers = [name for name in _HANDLERS if name in probe]
    if not handlers:
        yield required(field, "must specify a handler type")
    for extra in handlers[1:]:
        yield forbidden(f"{field}.{extra}", "may not specify more than 1 handler type")


def _validate_volumes(volumes: list[JsonObject], field: str) -> Iterator[FieldError]:
    seen: set[str] = set()
    for index, volume in enumerate(volumes):
        name = volume.get("name", "")
        where = f"{field}[{index}]"
        if name:
            yield from (invalid(f"{where}.name", name, text) for text in names.dns_label(name))
        if name in seen:
            yield duplicate(f"{where}.name", name)
        seen.add(name)


def validate_update(new: JsonObject, old: JsonObject) -> Iterator[FieldError]:
    """Judge a change: a pod's specification is immutable except for a few fields."""
    before, after = copy.deepcopy(old.get("spec") or {}), copy.deepcopy(new.get("spec") or {})
    for spec in (before, after):
        for container in _containers(spec):
            container.pop("image", None)
        for name in ("activeDeadlineSeconds", "tolerations", "schedulingGates"):
            spec.pop(name, None)
    if before != after:
        yield forbidden("spec", f"pod updates may not change fields other than {_MUTABLE}")
