"""Deployments, ReplicaSets and StatefulSets: defaults, validation, immutability."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from devkube.apiserver.status import FieldError, forbidden, invalid, required, unsupported
from devkube.apiserver.validation import pods
from kubeloop.objects.meta import JsonObject
from kubeloop.objects.selectors import LabelSelector, SelectorError

_STATEFUL_MUTABLE = (
    "replicas",
    "ordinals",
    "template",
    "updateStrategy",
    "revisionHistoryLimit",
    "persistentVolumeClaimRetentionPolicy",
    "minReadySeconds",
)


def default_deployment(obj: JsonObject) -> None:
    """Fill in a Deployment."""
    spec = obj.setdefault("spec", {})
    spec.setdefault("replicas", 1)
    strategy = spec.setdefault("strategy", {})
    if not strategy.get("type"):
        strategy["type"] = "RollingUpdate"
    if strategy["type"] == "RollingUpdate":
        rolling = strategy.setdefault("rollingUpdate", {})
        rolling.setdefault("maxUnavailable", "25%")
        rolling.setdefault("maxSurge", "25%")
    spec.setdefault("revisionHistoryLimit", 10)
    spec.setdefault("progressDeadlineSeconds", 600)
    pods.default_template(spec.setdefault("template", {}))


def default_pod_template(obj: JsonObject) -> None:
    """Fill in a PodTemplate."""
    pods.default_template(obj.setdefault("template", {}))


def default_replica_set(obj: JsonObject) -> None:
    """Fill in a ReplicaSet."""
    spec = obj.setdefault("spec", {})
    spec.setdefault("replicas", 1)
    pods.default_template(spec.setdefault("template", {}))


def default_stateful_set(obj: JsonObject) -> None:
    """Fill in a StatefulSet."""
    spec = obj.setdefault("spec", {})
    spec.setdefault("replicas", 1)
    spec.setdefault("podManagementPolicy", "OrderedReady")
    spec.setdefault("revisionHistoryLimit", 10)
    strategy = spec.setdefault("updateStrategy", {})
    if not strategy.get("type"):
        strategy["type"] = "RollingUpdate"
    if strategy["type"] == "RollingUpdate":
        strategy.setdefault("rollingUpdate", {}).setdefault("partition", 0)
    retention = spec.setdefault("persistentVolumeClaimRetentionPolicy", {})
    retention.setdefault("whenDeleted", "Retain")
    retention.setdefault("whenScaled", "Retain")
    pods.default_template(spec.setdefault("template", {}))


def validate_selected(obj: JsonObject) -> Iterator[FieldError]:
    """Judge a workload whose selector must match its template."""
    spec = obj.get("spec") or {}
    yield from _not_negative(spec, ("replicas", "minReadySeconds", "revisionHistoryLimit"))
    yield from _selector(spec)
    template = spec.get("template") or {}
    if obj.get("kind") != "StatefulSet":  # its claims add volumes: its pods are judged when made
        yield from pods.validate_template(template, "spec.template")
    policy = (template.get("spec") or {}).get("restartPolicy", "Always")
    if policy != "Always":
        yield unsupported("spec.template.spec.restartPolicy", policy, ["Always"])


def validate_deployment(obj: JsonObject) -> Iterator[FieldError]:
    """Judge a Deployment."""
    yield from validate_selected(obj)
    spec = obj.get("spec") or {}
    strategy = spec.get("strategy") or {}
    if strategy.get("type") == "Recreate" and strategy.get("rollingUpdate") is not None:
        text = "may not be specified when strategy `type` is 'Recreate'"
        yield forbidden("spec.strategy.rollingUpdate", text)
    rolling = strategy.get("rollingUpdate") or {}
    for name in ("maxUnavailable", "maxSurge"):
        yield from _amount(rolling.get(name, 0), f"spec.strategy.rollingUpdate.{name}")


def _amount(value: Any, field: str) -> Iterator[FieldError]:
    if isinstance(value, str):
        if not (value.endswith("%") and value[:-1].isdigit()):
            yield invalid(
                field,
                value,
                "a valid percent string must be a numeric string followed by an ending '%' (e.g. '1%',"
                "  or '93%', regex used for validation is '[0-9]+%')",
            )
    elif value < 0:
        yield invalid(field, value, "must be greater than or equal to 0")


def _not_negative(spec: JsonObject, fields: tuple[str, ...]) -> Iterator[FieldError]:
    for name in fields:
        if (spec.get(name) or 0) < 0:
            yield invalid(f"spec.{name}", spec[name], "must be greater than or equal to 0")


def _selector(spec: JsonObject) -> Iterator[FieldError]:
    selector = spec.get("selector")
    if selector is None:
        yield required("spec.selector")
    elif not selector.get("matchLabels") and not selector.get("matchExpressions"):
        yield invalid("spec.selector", selector, "empty selector is invalid for deployment")
        return
    labels = ((spec.get("template") or {}).get("metadata") or {}).get("labels") or {}
    try:
        matches = selector is not None and LabelSelector.from_json(selector).matches(labels)
    except SelectorError as error:
        yield invalid("spec.selector", selector, str(error))
        return
    if not matches:
        yield invalid(
            "spec.template.metadata.labels", labels, "`selector` does not match template `labels`"
        )


def stateful_update(new: JsonObject, old: JsonObject) -> Iterator[FieldError]:
    """Refuse changes of what a StatefulSet was made with."""
    after, before = (
        {
            name: value
            for name, value in (obj.get("spec") or {}).items()
            if name not in _STATEFUL_MUTABLE
        }
        for obj in (new, old)
    )
    if after != before:
        fields = ", ".join(f"'{name}'" for name in _STATEFUL_MUTABLE[:-1])
        yield forbidden(
            "spec",
            f"updates to statefulset spec for fields other than {fields} and"
            f" '{_STATEFUL_MUTABLE[-1]}' are forbidden",
        )
