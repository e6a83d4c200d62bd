"""Deployments, ReplicaSets and StatefulSets: defaults, validation, immutability."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from devkube.apiserver.status import FieldError, forbidden, invalid, required, unsupported
from devkube.apiserver.validation import pods
from kubeloop.objects.meta import JsonObject
from kubeloop.objects.selectors import LabelSelector, SelectorError

_IMMUTABLE = "field is immutable"
_OPERATORS = ("In", "NotIn", "Exists", "DoesNotExist")
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
        yield forbidden(
            "spec.strategy.rollingUpdate",
            "may not be specified when strategy `type` is 'Recreate'",
        )
    elif strategy.get("type") not in (None, "Recreate", "RollingUpdate"):
        yield unsupported("spec.strategy.type", strategy["type"], ["Recreate", "RollingUpdate"])
    rolling = strategy.get("rollingUpdate") or {}
    for name in ("maxUnavailable", "maxSurge"):
        yield from _amount(rolling.get(name, 0), f"spec.strategy.rollingUpdate.{name}")
    if rolling and all(_is_zero(rolling.get(name)) for name in ("maxUnavailable", "maxSurge")):
        yield invalid(
            "spec.strategy.rollingUpdate.maxUnavailable",
            rolling.get("maxUnavailable"),
            "may not be 0 when `maxSurge` is 0",
        )
    deadline, ready = spec.get("progressDeadlineSeconds", 600), spec.get("minReadySeconds", 0)
    if deadline <= ready:
        yield invalid(
            "spec.progressDeadlineSeconds", deadline, "must be greater than minReadySeconds"
        )


def _is_zero(value: Any) -> bool:
    return value in (0, "0", "0%")


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
        selector = {"matchExpressions": [{"operator": "Never"}]}
    elif not selector.get("matchLabels") and not selector.get("matchExpressions"):
        yield invalid("spec.selector", selector, "empty selector is invalid for deployment")
        return
    else:
        yield from _expressions(selector.get("matchExpressions") or [])
    labels = ((spec.get("template") or {}).get("metadata") or {}).get("labels") or {}
    if not _selects(selector, labels):
        yield invalid(
            "spec.template.metadata.labels", labels, "`selector` does not match template `labels`"
        )


def _expressions(expressions: list[JsonObject]) -> Iterator[FieldError]:
    for index, expression in enumerate(expressions):
        field = f"spec.selector.matchExpressions[{index}]"
        operator, values = expression.get("operator"), expression.get("values")
        if operator not in _OPERATORS:
            yield invalid(f"{field}.operator", operator, "not a valid selector operator")
        elif operator in ("In", "NotIn") and not values:
            yield required(
                f"{field}.values", "must be specified when `operator` is 'In' or 'NotIn'"
            )
        elif operator in ("Exists", "DoesNotExist") and values:
            yield forbidden(
                f"{field}.values",
                "may not be specified when `operator` is 'Exists' or 'DoesNotExist'",
            )


def _selects(selector: JsonObject, labels: JsonObject) -> bool:
    try:
        return LabelSelector.from_json(selector).matches(labels)
    except SelectorError:
        return False  # what is wrong with it is reported by itself


def selector_is_fixed(new: JsonObject, old: JsonObject) -> Iterator[FieldError]:
    """Refuse another selector."""
    after = (new.get("spec") or {}).get("selector")
    if after != (old.get("spec") or {}).get("selector"):
        yield invalid("spec.selector", after, _IMMUTABLE)


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
