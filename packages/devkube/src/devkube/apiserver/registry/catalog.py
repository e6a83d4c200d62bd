"""The catalogue of Kubernetes' own resources: discovery's table joined with types and rules.

Kinds without rules are stored as their type allows. Two kinds live in more than one version:
HorizontalPodAutoscalers are stored in v2 and shown in v1, which `kubectl autoscale` writes, with the CPU
utilisation that v1 knows; events are stored in the core group and shown in events.k8s.io under its names.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from devkube.apiserver.crd.definition import DEFINITION_RULES
from devkube.apiserver.registry.resources import (
    ResourceRegistry,
    ScalePaths,
    ServedResource,
    ServedVersion,
    no_conversion,
)
from devkube.apiserver.schema.types import BuiltinTypes, read_table
from devkube.apiserver.validation import names, pods, services, simple_kinds, workloads
from devkube.apiserver.validation.strategy import BuiltinStrategy, KindRules, fixed
from kubeloop.objects.gvk import GroupVersion
from kubeloop.objects.meta import JsonObject

SHARED_COLLECTIONS = {("events.k8s.io", "events"): "/events"}
# Core name, name in events.k8s.io.
_EVENT_NAMES = (
    ("involvedObject", "regarding"),
    ("message", "note"),
    ("reportingComponent", "reportingController"),
    ("source", "deprecatedSource"),
    ("firstTimestamp", "deprecatedFirstTimestamp"),
    ("lastTimestamp", "deprecatedLastTimestamp"),
    ("count", "deprecatedCount"),
)
_PACKAGES = {
    "": "io.k8s.api.core",
    "apiextensions.k8s.io": "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions",
}
# The subresources of each resource. The kubelet registers streams to a node.
_SUBRESOURCES = ("binding", "finalize", "scale", "status", "token")
_LEFT_OUT = ("bindings", "componentstatuses", "localsubjectaccessreviews")


def _paths(*names_: str) -> dict[str, tuple[str, ...]]:
    return {name: tuple(name.split(".")) for name in names_}


_EVENT_FIELDS = _paths(
    "involvedObject.kind",
    "involvedObject.namespace",
    "involvedObject.name",
    "involvedObject.uid",
    "involvedObject.apiVersion",
    "involvedObject.resourceVersion",
    "involvedObject.fieldPath",
    "reason",
    "reportingComponent",
    "type",
) | {"source": ("source", "component")}

_BINDING = KindRules(
    default=simple_kinds.default_binding,
    validate=simple_kinds.validate_binding,
    validate_update=fixed("roleRef", why="cannot change roleRef"),
    name_rule=names.path_segment,
)
KIND_RULES: Mapping[str, KindRules] = {
    "Pod": KindRules(
        default=pods.default_pod,
        prepare_create=pods.prepare_create,
        validate=pods.validate_pod,
        validate_update=pods.validate_update,
        generation=True,
        selectable=_paths(
            "spec.nodeName",
            "spec.restartPolicy",
            "spec.schedulerName",
            "spec.serviceAccountName",
            "spec.hostNetwork",
            "status.phase",
            "status.podIP",
            "status.nominatedNodeName",
        ),
    ),
    "PodTemplate": KindRules(default=workloads.default_pod_template, generation=True),
    "Deployment": KindRules(
        default=workloads.default_deployment,
        validate=workloads.validate_deployment,
        validate_update=fixed("spec.selector"),
        generation=True,
    ),
    "ReplicaSet": KindRules(
        default=workloads.default_replica_set,
        validate=workloads.validate_selected,
        validate_update=fixed("spec.selector"),
        generation=True,
        selectable=_paths("status.replicas"),
    ),
    "StatefulSet": KindRules(
        default=workloads.default_stateful_set,
        validate=workloads.validate_selected,
        validate_update=workloads.stateful_update,
        generation=True,
    ),
    "Service": KindRules(
        default=services.default_service,
        prepare_create=services.prepare_create,
        prepare_update=services.prepare_update,
        validate=services.validate_service,
        validate_update=services.validate_update,
        name_rule=names.dns_label,
        selectable=_paths("spec.clusterIP", "spec.type"),
    ),
    "EndpointSlice": KindRules(
        default=services.default_slice,
        validate=services.validate_slice,
        validate_update=fixed("addressType"),
        generation=True,
        check_required=False,
    ),
    "ConfigMap": KindRules(
        validate=simple_kinds.validate_config_map, validate_update=simple_kinds.immutable_update
    ),
    "Secret": KindRules(
        default=simple_kinds.default_secret,
        validate=simple_kinds.validate_secret,
        validate_update=simple_kinds.secret_update,
        selectable=_paths("type"),
    ),
    "Namespace": KindRules(
        default=simple_kinds.default_namespace,
        prepare_create=simple_kinds.create_namespace,
        prepare_update=simple_kinds.update_namespace,
        name_rule=names.dns_label,
        selectable=_paths("status.phase"),
    ),
    "Node": KindRules(
        default=simple_kinds.default_node,
        born_with_status=True,
        selectable=_paths("spec.unschedulable"),
    ),
    "Event": KindRules(
        default=simple_kinds.default_event,
        validate=simple_kinds.validate_event,
        selectable=_EVENT_FIELDS,
        check_required=False,
    ),
    "Lease": KindRules(validate=simple_kinds.validate_lease, blind_update=False),
    "HorizontalPodAutoscaler": KindRules(
        default=simple_kinds.default_autoscaler, prepare_create=simple_kinds.create_autoscaler
    ),
    "Role": KindRules(name_rule=names.path_segment),
    "ClusterRole": KindRules(name_rule=names.path_segment),
    "RoleBinding": _BINDING,
    "ClusterRoleBinding": _BINDING,
    "PodDisruptionBudget": KindRules(generation=True, blind_update=False),
    "LimitRange": KindRules(check_required=False),
    "Ingress": KindRules(generation=True),
    "NetworkPolicy": KindRules(generation=True),
    "CustomResourceDefinition": DEFINITION_RULES,
}


def autoscaler_to_v1(obj: JsonObject) -> JsonObject:
    """Show a v2 autoscaler as v1: the CPU utilisation, if that is a metric, is all it has."""
    spec = dict(obj.get("spec") or {})
    spec.pop("behavior", None)
    for metric in spec.pop("metrics", None) or []:
        resource = metric.get("resource") or {}
        target = resource.get("target") or {}
        if resource.get("name") == "cpu" and "averageUtilization" in target:
            spec["targetCPUUtilizationPercentage"] = target["averageUtilization"]
    status = {
        name: value
        for name, value in (obj.get("status") or {}).items()
        if name not in ("currentMetrics", "conditions")
    }
    return {**obj, "apiVersion": "autoscaling/v1", "spec": spec, "status": status}


def autoscaler_from_v1(obj: JsonObject) -> JsonObject:
    """Store a v1 autoscaler as v2."""
    spec = dict(obj.get("spec") or {})
    percentage = spec.pop("targetCPUUtilizationPercentage", None)
    if percentage is not None:
        target = {"type": "Utilization", "averageUtilization": percentage}
        spec["metrics"] = [{"type": "Resource", "resource": {"name": "cpu", "target": target}}]
    return {**obj, "apiVersion": "autoscaling/v2", "spec": spec}


def event_to_new(obj: JsonObject) -> JsonObject:
    """Show a core event as an events.k8s.io one."""
    names = dict(_EVENT_NAMES)
    return {names.get(name, name): value for name, value in obj.items()} | {
        "apiVersion": "events.k8s.io/v1"
    }


def event_from_new(obj: JsonObject) -> JsonObject:
    """Store an events.k8s.io event as a core one."""
    names = {new: core for core, new in _EVENT_NAMES}
    return {names.get(name, name): value for name, value in obj.items()} | {"apiVersion": "v1"}


# From the stored form, and to it.
_CONVERSIONS = {
    ("autoscaling", "v1", "HorizontalPodAutoscaler"): (autoscaler_to_v1, autoscaler_from_v1),
    ("events.k8s.io", "v1", "Event"): (event_to_new, event_from_new),
}


def builtin_registry(types: BuiltinTypes) -> ResourceRegistry:
    """Return a registry of every resource in the derived table."""
    registry = ResourceRegistry()
    merged: dict[tuple[str, str], ServedResource] = {}
    for entry in read_table("resources"):
        group, version = GroupVersion.parse(entry["groupVersion"])
        for resource in _version(types, group, version, entry["resources"]):
            key = (group, resource.plural)
            known = merged.get(key)
            merged[key] = _join(known, resource) if known is not None else resource
            registry.add(merged[key], group_versions=[(group, version)])
    return registry


def _join(first: ServedResource, second: ServedResource) -> ServedResource:
    return dataclasses.replace(first, versions=(*first.versions, *second.versions))


def _version(
    types: BuiltinTypes, group: str, version: str, entries: list[JsonObject]
) -> list[ServedResource]:
    subresources: dict[str, set[str]] = {}
    for entry in entries:
        plural, slash, subresource = entry["name"].partition("/")
        if slash and subresource in _SUBRESOURCES:
            subresources.setdefault(plural, set()).add(subresource)
    return [
        _resource(types, group, version, entry, frozenset(subresources.get(entry["name"], ())))
        for entry in entries
        if "/" not in entry["name"] and entry["name"] not in _LEFT_OUT
    ]


def _resource(
    types: BuiltinTypes, group: str, version: str, entry: JsonObject, subresources: frozenset[str]
) -> ServedResource:
    kind = entry["kind"]
    rules = KIND_RULES.get(kind, KindRules())
    package = _PACKAGES.get(group) or f"io.k8s.api.{group.partition('.')[0]}"
    definition = f"{package}.{version}.{kind}"
    load, store = _CONVERSIONS.get((group, version, kind), (no_conversion, no_conversion))
    served = ServedVersion(
        version=version,
        type=types.type(definition),
        subresources=subresources,
        scale=ScalePaths(selector="spec.selector") if "scale" in subresources else None,
        definition=definition,
        load=load,
        store=store,
    )
    return ServedResource(
        group=group,
        plural=entry["name"],
        singular=entry["singularName"],
        kind=kind,
        list_kind=f"{kind}List",
        namespaced=entry["namespaced"],
        versions=(served,),
        strategy=BuiltinStrategy(rules, namespaced=entry["namespaced"]),
        short_names=tuple(entry.get("shortNames", ())),
        categories=tuple(entry.get("categories", ())),
        verbs=tuple(entry["verbs"]),
        collection=SHARED_COLLECTIONS.get((group, entry["name"]), ""),
    )
