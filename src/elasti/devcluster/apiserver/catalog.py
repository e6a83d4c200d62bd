"""The catalogue of Kubernetes' own resources: discovery's table joined with types and rules."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from elasti.devcluster.apiserver.custom.definition import RULES as DEFINITION_RULES
from elasti.devcluster.apiserver.kinds import conversions
from elasti.devcluster.apiserver.kinds.rules import BuiltinStrategy, Rules
from elasti.devcluster.apiserver.kinds.table import RULES
from elasti.devcluster.apiserver.resources import Registry, Resource, ScalePaths, Served
from elasti.devcluster.apiserver.schema.builtin import BuiltinTypes, read_table
from kubeloop.objects.gvk import GroupVersion

if TYPE_CHECKING:
    from kubeloop.objects.meta import JsonObject

_PACKAGES = {
    "": "io.k8s.api.core",
    "apiextensions.k8s.io": "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions",
}
# What is served below a resource. Streams to a node are the kubelet's to register.
_SUBRESOURCES = ("binding", "eviction", "finalize", "scale", "status", "token")
_LEFT_OUT = ("bindings", "componentstatuses")


def builtin_registry(types: BuiltinTypes) -> Registry:
    """Return a registry of every resource in the derived table."""
    registry = Registry()
    merged: dict[tuple[str, str], Resource] = {}
    for entry in read_table("resources"):
        group, version = GroupVersion.parse(entry["groupVersion"])
        for resource in _version(types, group, version, entry["resources"]):
            key = (group, resource.plural)
            known = merged.get(key)
            merged[key] = _join(known, resource) if known is not None else resource
            registry.add(merged[key], group_versions=[(group, version)])
    return registry


def _join(first: Resource, second: Resource) -> Resource:
    return dataclasses.replace(first, versions=(*first.versions, *second.versions))


def _version(
    types: BuiltinTypes, group: str, version: str, entries: list[JsonObject]
) -> list[Resource]:
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
) -> Resource:
    kind = entry["kind"]
    definition = definition_name(group, version, kind)
    load, store = conversions.between(group, version, kind)
    served = Served(
        version=version,
        type=types.type(definition),
        subresources=subresources,
        scale=ScalePaths(selector="spec.selector") if "scale" in subresources else None,
        definition=definition,
        load=load,
        store=store,
    )
    return Resource(
        group=group,
        plural=entry["name"],
        singular=entry["singularName"],
        kind=kind,
        list_kind=f"{kind}List",
        namespaced=entry["namespaced"],
        versions=(served,),
        strategy=BuiltinStrategy(rules_of(kind), namespaced=entry["namespaced"]),
        short_names=tuple(entry.get("shortNames", ())),
        categories=tuple(entry.get("categories", ())),
        verbs=tuple(entry["verbs"]),
        collection=conversions.COLLECTIONS.get((group, entry["name"]), ""),
    )


def rules_of(kind: str) -> Rules:
    """Return a kind's rules; definitions have theirs with the custom resources."""
    return DEFINITION_RULES if kind == "CustomResourceDefinition" else RULES.get(kind, Rules())


def definition_name(group: str, version: str, kind: str) -> str:
    """Return the OpenAPI definition of a kind of ours."""
    package = _PACKAGES.get(group) or f"io.k8s.api.{group.partition('.')[0]}"
    return f"{package}.{version}.{kind}"
