"""Kinds with little of their own: configuration, namespaces, nodes, leases, autoscalers, roles, CRDs."""

from __future__ import annotations

import base64
from collections.abc import Iterator

from devkube.apiserver.status import (
    FieldError,
    FieldErrorType,
    forbidden,
    invalid,
    required,
    unsupported,
)
from kubeloop.objects.meta import JsonObject

_KEY_MESSAGE = (
    "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',"
    "  or 'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')"
)
_KEY_EXTRA = "-._"
_SIZE_LIMIT = 1024 * 1024
_SUBJECTS = ("ServiceAccount", "User", "Group")


def _decoded_size(values: JsonObject) -> int:
    return sum(len(text) * 3 // 4 - text[-2:].count("=") for text in values.values())


def _too_long(field: str) -> FieldError:
    return FieldError(
        FieldErrorType.TOO_LONG, field, "", f"may not be more than {_SIZE_LIMIT} bytes"
    )


def _keys(obj: JsonObject, fields: tuple[str, ...]) -> Iterator[FieldError]:
    for field in fields:
        for key in obj.get(field) or {}:
            plain = all((c.isalnum() and c.isascii()) or c in _KEY_EXTRA for c in key)
            if not plain or not key or key in (".", "..") or len(key) > 253:
                yield invalid(f"{field}[{key}]", key, _KEY_MESSAGE)


def validate_config_map(obj: JsonObject) -> Iterator[FieldError]:
    """Judge a ConfigMap: keys, and no key in both halves."""
    yield from _keys(obj, ("data", "binaryData"))
    texts = sum(len(text.encode()) for text in (obj.get("data") or {}).values())
    if texts + _decoded_size(obj.get("binaryData") or {}) > _SIZE_LIMIT:
        yield _too_long("[]")
    both = set(obj.get("data") or {}) & set(obj.get("binaryData") or {})
    for key in sorted(both):
        yield invalid(f"binaryData[{key}]", key, "duplicate of key present in data")


def default_secret(obj: JsonObject) -> None:
    """Fold `stringData` into `data`, and name the type."""
    for key, value in (obj.pop("stringData", None) or {}).items():
        obj.setdefault("data", {})[key] = base64.b64encode(value.encode()).decode()
    obj.setdefault("type", "Opaque")


def validate_secret(obj: JsonObject) -> Iterator[FieldError]:
    """Judge a Secret: its keys and its size."""
    yield from _keys(obj, ("data",))
    if _decoded_size(obj.get("data") or {}) > _SIZE_LIMIT:
        yield _too_long("data")


def immutable_update(new: JsonObject, old: JsonObject) -> Iterator[FieldError]:
    """Refuse changes of a ConfigMap or Secret that was made immutable."""
    if not old.get("immutable"):
        return
    if not new.get("immutable"):
        yield forbidden("immutable", "field is immutable when `immutable` is set")
    for field in ("data", "binaryData"):
        if new.get(field) != old.get(field):
            yield forbidden(field, "field is immutable when `immutable` is set")


def secret_update(new: JsonObject, old: JsonObject) -> Iterator[FieldError]:
    """Refuse another type, and changes of an immutable Secret."""
    if new.get("type") != old.get("type"):
        yield invalid("type", new.get("type"), "field is immutable")
    yield from immutable_update(new, old)


def default_namespace(obj: JsonObject) -> None:
    """Label a namespace with its name, which selectors rely on."""
    metadata = obj.setdefault("metadata", {})
    if metadata.get("name"):
        metadata.setdefault("labels", {})["kubernetes.io/metadata.name"] = metadata["name"]


def create_namespace(obj: JsonObject) -> None:
    """Begin active, with the finalizer that empties the namespace before it goes."""
    obj["spec"] = {"finalizers": ["kubernetes"]}
    obj["status"] = {"phase": "Active"}


def update_namespace(new: JsonObject, old: JsonObject) -> None:
    """Keep the finalizers: they change through their own subresource."""
    new["spec"] = old.get("spec") or {}


def default_autoscaler(obj: JsonObject) -> None:
    """Fill in a HorizontalPodAutoscaler."""
    spec = obj.setdefault("spec", {})
    spec.setdefault("minReplicas", 1)
    if obj.get("apiVersion") == "autoscaling/v2" and not spec.get("metrics"):
        target = {"type": "Utilization", "averageUtilization": 80}
        spec["metrics"] = [{"type": "Resource", "resource": {"name": "cpu", "target": target}}]


def create_autoscaler(obj: JsonObject) -> None:
    """Begin with a status that has counted nothing."""
    obj["status"] = {"currentReplicas": 0, "desiredReplicas": 0}


def default_event(obj: JsonObject) -> None:
    """Fill in what every core event shows."""
    if obj.get("apiVersion") == "v1":
        obj.setdefault("source", {})
        obj.setdefault("reportingComponent", "")
        obj.setdefault("reportingInstance", "")


def validate_event(obj: JsonObject) -> Iterator[FieldError]:
    """Judge an Event: in the namespace of what it is about and, in the newer API, complete."""
    about = obj.get("involvedObject") or obj.get("regarding") or {}
    mine, theirs = obj["metadata"].get("namespace", ""), about.get("namespace", "")
    if theirs != mine and (theirs or mine != "default"):
        yield invalid("involvedObject.namespace", theirs, "does not match event.namespace")
    if obj.get("apiVersion") == "v1":
        return
    for name in ("eventTime", "reportingController", "reportingInstance", "action", "reason"):
        if not obj.get(name):
            yield required(name)
    kind = obj.get("type", "")
    if kind not in ("Normal", "Warning"):
        yield invalid("type", kind, f"has invalid value: {kind}")


def default_node(obj: JsonObject) -> None:
    """Let everything that a node has be allocatable unless it says otherwise."""
    state = obj.get("status") or {}
    if state.get("capacity") and not state.get("allocatable"):
        state["allocatable"] = dict(state["capacity"])


def validate_lease(obj: JsonObject) -> Iterator[FieldError]:
    """Judge a Lease."""
    spec = obj.get("spec") or {}
    if spec.get("leaseDurationSeconds", 1) <= 0:
        yield invalid(
            "spec.leaseDurationSeconds", spec["leaseDurationSeconds"], "must be greater than 0"
        )


def default_binding(obj: JsonObject) -> None:
    """Name the API group of a role reference and of subjects."""
    group = "rbac.authorization.k8s.io"
    reference = obj.get("roleRef")
    if isinstance(reference, dict):
        reference.setdefault("apiGroup", group)
    for subject in obj.get("subjects") or []:
        if subject.get("kind") in ("User", "Group"):
            subject.setdefault("apiGroup", group)


def validate_binding(obj: JsonObject) -> Iterator[FieldError]:
    """Judge a RoleBinding or ClusterRoleBinding."""
    kind = (obj.get("roleRef") or {}).get("kind", "")
    wanted = ("Role", "ClusterRole") if obj.get("kind") == "RoleBinding" else ("ClusterRole",)
    if kind and kind not in wanted:
        yield unsupported("roleRef.kind", kind, wanted)
    for index, subject in enumerate(obj.get("subjects") or []):
        field = f"subjects[{index}]"
        if subject.get("kind") not in _SUBJECTS:
            yield unsupported(f"{field}.kind", subject.get("kind", ""), _SUBJECTS)
        elif subject["kind"] == "ServiceAccount" and not subject.get("namespace"):
            yield required(f"{field}.namespace")
