"""Discovery and OpenAPI: documents about what is served, made when they are asked for.

Discovery has two forms, a document for each group version and one that aggregates them; OpenAPI v3 is
by group version. They are remembered until the registry changes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import msgspec

from devkube.apiserver.registry.resources import ResourceRegistry, ServedResource, ServedVersion
from devkube.apiserver.schema.types import OBJECT_META, BuiltinTypes
from kubeloop.objects.meta import JsonObject

_WANTED = "g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
AGGREGATED = f"application/json;{_WANTED}"
_KINDS = {
    "scale": ("autoscaling", "v1", "Scale"),
    "token": ("authentication.k8s.io", "v1", "TokenRequest"),
    "binding": ("", "v1", "Binding"),
}
_CREATED = ("token", "binding")
_REFERENCE = "#/components/schemas/"
_READ = ("log",)
_VERSION = "v1.36.0"
_WRITE = ("dryRun", "fieldManager", "fieldValidation")
_PATCHES = (
    "application/apply-patch+yaml",
    "application/json-patch+json",
    "application/merge-patch+json",
)
_STRATEGIC = "application/strategic-merge-patch+json"


class DiscoveryDocuments:
    """The documents, made from the registry when asked."""

    def __init__(self, registry: ResourceRegistry) -> None:
        self._registry = registry

    def document(self, path: str, accept: str, address: str) -> tuple[JsonObject, str] | None:
        """Return a discovery document and its content type; None for other paths."""
        parts = path.strip("/").split("/")
        if parts in (["api"], ["apis"]) and _WANTED in accept:
            named = [
                pair
                for pair in self._registry.group_versions()
                if bool(pair[0]) is (parts == ["apis"])
            ]
            return self._aggregated(named), AGGREGATED
        found = self._plain(parts, address)
        return (found, "application/json") if found is not None else None

    def _plain(self, parts: list[str], address: str) -> JsonObject | None:
        match parts:
            case ["api"]:
                return self._versions(address)
            case ["apis"]:
                return self._groups()
            case ["api", version]:
                return self._resources("", version)
            case ["apis", group]:
                return self._group(group)
            case ["apis", group, version]:
                return self._resources(group, version)
            case _:
                return None

    def _versions(self, address: str) -> JsonObject:
        client = {"clientCIDR": "0.0.0.0/0", "serverAddress": address}
        return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": [client]}

    def _groups(self) -> JsonObject:
        names = dict.fromkeys(group for group, _ in self._registry.group_versions() if group)
        groups = [{k: v for k, v in g.items() if k != "kind"} for g in map(self._group, names) if g]
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}

    def _group(self, name: str) -> JsonObject | None:
        pairs = self._registry.group_versions()
        versions = [
            {"groupVersion": f"{name}/{version}", "version": version}
            for group, version in pairs
            if group == name and name
        ]
        if not versions:
            return None
        return {
            "kind": "APIGroup",
            "apiVersion": "v1",
            "name": name,
            "versions": versions,
            "preferredVersion": versions[0],
        }

    def _resources(self, group: str, version: str) -> JsonObject | None:
        found = self._registry.in_version(group, version)
        if not found:
            return None
        resources = [entry for pair in found for entry in _entries(*pair)]
        group_version = f"{group}/{version}" if group else version
        return {
            "kind": "APIResourceList",
            "apiVersion": "v1",
            "groupVersion": group_version,
            "resources": resources,
        }

    def _aggregated(self, pairs: list[tuple[str, str]]) -> JsonObject:
        groups: dict[str, list[JsonObject]] = {}
        for group, version in pairs:
            resources = [
                _aggregated_entry(*pair, group, version)
                for pair in self._registry.in_version(group, version)
            ]
            groups.setdefault(group, []).append(
                {"version": version, "resources": resources, "freshness": "Current"}
            )
        items = [
            {"metadata": {"name": name} if name else {}, "versions": versions}
            for name, versions in groups.items()
        ]
        return {
            "kind": "APIGroupDiscoveryList",
            "apiVersion": "apidiscovery.k8s.io/v2",
            "metadata": {},
            "items": items,
        }


def subresource_verbs(name: str) -> list[str]:
    """Return the verbs that a subresource has."""
    if name in _CREATED:
        return ["create"]
    if name in _READ:
        return ["get"]
    return ["update"] if name == "finalize" else ["get", "patch", "update"]


def _entries(resource: ServedResource, served: ServedVersion) -> Iterator[JsonObject]:
    yield {
        "name": resource.plural,
        "singularName": resource.singular,
        "namespaced": resource.namespaced,
        "kind": resource.kind,
        **_common(resource),
    }
    for name in sorted(served.subresources):
        yield _subresource_entry(resource, name)


def _common(resource: ServedResource) -> JsonObject:
    lists = {
        "verbs": resource.verbs,
        "shortNames": resource.short_names,
        "categories": resource.categories,
    }
    return {name: list(values) for name, values in lists.items() if values}


def _subresource_entry(resource: ServedResource, name: str) -> JsonObject:
    entry: JsonObject = {
        "name": f"{resource.plural}/{name}",
        "singularName": "",
        "namespaced": resource.namespaced,
        "kind": resource.kind,
        "verbs": subresource_verbs(name),
    }
    if name in _KINDS:
        entry["group"], entry["version"], entry["kind"] = _KINDS[name]
    return entry


def _response_kind(resource: ServedResource, group: str, version: str) -> JsonObject:
    """Name a kind; a built-in one's group and version are those that it is listed under."""
    if resource.custom:
        return {"group": group, "version": version, "kind": resource.kind}
    return {"group": "", "version": "", "kind": resource.kind}


def _aggregated_entry(
    resource: ServedResource, served: ServedVersion, group: str, version: str
) -> JsonObject:
    entry: JsonObject = {
        "resource": resource.plural,
        "responseKind": _response_kind(resource, group, version),
        "scope": "Namespaced" if resource.namespaced else "Cluster",
        "singularResource": resource.singular,
        **_common(resource),
    }
    below = []
    for name in sorted(served.subresources):
        response = _response_kind(resource, group, version)
        if name in _KINDS:
            response = dict(zip(("group", "version", "kind"), _KINDS[name], strict=True))
        below.append(
            {"subresource": name, "responseKind": response, "verbs": subresource_verbs(name)}
        )
    if below:
        entry["subresources"] = below
    return entry


class OpenApiDocuments:
    """Documents for `kubectl explain`, `apply` and `diff`; remembered until the registry changes."""

    def __init__(self, registry: ResourceRegistry, types: BuiltinTypes) -> None:
        self._registry = registry
        self._types = types
        self._revision = -1
        self._documents: dict[str, bytes] = {}

    def index(self) -> JsonObject:
        """Return `/openapi/v3`: where the document of each group version is."""
        paths = {}
        for group, version in self._registry.group_versions():
            path = f"apis/{group}/{version}" if group else f"api/{version}"
            digest = hashlib.sha256(f"{path}{self._registry.revision}".encode()).hexdigest()
            url = f"/openapi/v3/{path}?hash={digest.upper()[:32]}"
            paths[path] = {"serverRelativeURL": url}
        return {"paths": paths}

    def v3(self, path: str) -> bytes | None:
        """Return a group version's document; `path` is `api/v1` or `apis/apps/v1`."""
        match path.strip("/").split("/"):
            case ["api", version]:
                found = self._registry.in_version("", version)
            case ["apis", group, version]:
                found = self._registry.in_version(group, version)
            case _:
                return None
        if not found:
            return None
        if self._revision != self._registry.revision:
            self._documents.clear()
            self._revision = self._registry.revision
        if path not in self._documents:
            self._documents[path] = msgspec.json.encode(self._document(found))
        return self._documents[path]

    def _document(self, found: list[tuple[ServedResource, ServedVersion]]) -> JsonObject:
        schemas: JsonObject = {}
        paths: JsonObject = {}
        for resource, served in found:
            if resource.custom:
                self._add(schemas, OBJECT_META)
                schemas[served.definition] = _custom_schema(resource, served)
            else:
                self._add(schemas, served.definition)
            paths |= dict(_paths(resource, served))
        return {
            "openapi": "3.0.0",
            "info": {"title": "Kubernetes", "version": _VERSION},
            "paths": paths,
            "components": {"schemas": schemas},
        }

    def _add(self, schemas: JsonObject, name: str) -> None:
        if name in schemas:
            return
        pending: list[str] = []
        schemas[name] = _referenced(self._types.definition(name), pending)
        for reference in pending:
            self._add(schemas, reference)


def _referenced(schema: JsonObject, pending: list[str]) -> JsonObject:
    """Write references in full, and note them."""
    result: JsonObject = {}
    for key, value in schema.items():
        match key:
            case "x-zero":
                continue
            case "$ref":
                pending.append(value)
                if schema.keys() - {"$ref", "x-zero"}:
                    result["allOf"] = [{"$ref": _REFERENCE + value}]
                else:
                    result["$ref"] = _REFERENCE + value
            case "properties":
                result[key] = {n: _referenced(child, pending) for n, child in value.items()}
            case "items" | "additionalProperties" if isinstance(value, dict):
                result[key] = _referenced(value, pending)
            case _:
                result[key] = value
    return result


def _custom_schema(resource: ServedResource, served: ServedVersion) -> JsonObject:
    schema = dict(served.schema or {"type": "object", "x-kubernetes-preserve-unknown-fields": True})
    text = {"type": "string"}
    properties = {"apiVersion": text, "kind": text, **(schema.get("properties") or {})}
    properties["metadata"] = {"$ref": _REFERENCE + OBJECT_META}
    schema["properties"] = properties
    gvk = {"group": resource.group, "version": served.version, "kind": resource.kind}
    schema["x-kubernetes-group-version-kind"] = [gvk]
    return schema


def _paths(resource: ServedResource, served: ServedVersion) -> Iterator[tuple[str, JsonObject]]:
    base = f"/apis/{resource.group}" if resource.group else "/api"
    base = f"{base}/{served.version}"
    place = f"{base}/namespaces/{{namespace}}" if resource.namespaced else base
    yield (
        f"{place}/{resource.plural}",
        _operations(resource, served, {"list": "get", "create": "post"}),
    )
    named = {"get": "get", "update": "put", "patch": "patch", "delete": "delete"}
    yield f"{place}/{resource.plural}/{{name}}", _operations(resource, served, named)


def _operations(
    resource: ServedResource, served: ServedVersion, methods: dict[str, str]
) -> JsonObject:
    gvk = {"group": resource.group, "version": served.version, "kind": resource.kind}
    result: JsonObject = {}
    for verb, method in methods.items():
        if verb not in resource.verbs:
            continue
        operation: JsonObject = {
            "operationId": f"{verb}{resource.kind}{served.version}",
            "responses": {"200": {"description": "OK"}},
            "x-kubernetes-action": verb,
            "x-kubernetes-group-version-kind": gvk,
        }
        if method in ("post", "put", "patch"):
            text = {"type": "string", "uniqueItems": True}
            operation["parameters"] = [
                {"name": name, "in": "query", "schema": text} for name in _WRITE
            ]
        if method == "patch":
            patches = _PATCHES if resource.custom else (*_PATCHES, _STRATEGIC)
            operation["requestBody"] = {"content": {media: {} for media in patches}}
        result[method] = operation
    return result
