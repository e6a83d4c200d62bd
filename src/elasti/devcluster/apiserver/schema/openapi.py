"""OpenAPI documents of what is served, v3 by group version and v2 as one, made when asked for."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import msgspec

from elasti.devcluster.apiserver.schema.builtin import OBJECT_META

if TYPE_CHECKING:
    from collections.abc import Iterator

    from elasti.devcluster.apiserver.resources import Registry, Resource, Served
    from elasti.devcluster.apiserver.schema.builtin import BuiltinTypes
    from kubeloop.objects.meta import JsonObject

_VERSION = "v1.36.0"
_WRITE = ("dryRun", "fieldManager", "fieldValidation")
_PATCHES = (
    "application/apply-patch+yaml",
    "application/json-patch+json",
    "application/merge-patch+json",
)
_STRATEGIC = "application/strategic-merge-patch+json"


class OpenApi:
    """Documents for `kubectl explain`, `apply` and `diff`; remembered until the registry changes."""

    def __init__(self, registry: Registry, types: BuiltinTypes) -> None:
        self._registry = registry
        self._types = types
        self._revision = -1
        self._documents: dict[str, bytes] = {}

    def index(self) -> JsonObject:
        """Return `/openapi/v3`: where the document of each group version is."""
        paths = {}
        for group, version in self._registry.group_versions():
            path = f"apis/{group}/{version}" if group else f"api/{version}"
            digest = hashlib.sha256(f"{path}{self._revision_of(group)}".encode()).hexdigest()
            url = f"/openapi/v3/{path}?hash={digest.upper()[:32]}"
            paths[path] = {"serverRelativeURL": url}
        return {"paths": paths}

    def _revision_of(self, group: str) -> int:
        custom = any(resource.custom for resource in self._registry if resource.group == group)
        return self._registry.revision if custom else 0

    def v3(self, path: str) -> bytes | None:
        """Return a group version's document; `path` is `api/v1` or `apis/apps/v1`."""
        parts = path.strip("/").split("/")
        group, version = (
            ("", parts[-1])
            if parts[0] == "api"
            else (parts[1] if len(parts) > 1 else "", parts[-1])
        )
        found = self._registry.in_version(group, version)
        if not found or len(parts) != (2 if parts[0] == "api" else 3):
            return None
        return self._remember(f"v3/{path}", lambda: self._document(found, "#/components/schemas/"))

    def v2(self) -> bytes:
        """Return `/openapi/v2`, everything in one."""
        return self._remember("v2", self._swagger)

    def _remember(self, name: str, make: Any) -> bytes:
        if self._revision != self._registry.revision:
            self._documents.clear()
            self._revision = self._registry.revision
        if name not in self._documents:
            self._documents[name] = msgspec.json.encode(make())
        return self._documents[name]

    def _document(self, found: list[tuple[Resource, Served]], prefix: str) -> JsonObject:
        schemas: JsonObject = {}
        paths: JsonObject = {}
        for resource, served in found:
            self._add_schema(schemas, resource, served, prefix)
            paths |= dict(_paths(resource, served))
        return {
            "openapi": "3.0.0",
            "info": {"title": "Kubernetes", "version": _VERSION},
            "paths": paths,
            "components": {"schemas": schemas},
        }

    def _swagger(self) -> JsonObject:
        definitions: JsonObject = {}
        paths: JsonObject = {}
        for resource in self._registry:
            for served in resource.versions:
                self._add_schema(definitions, resource, served, "#/definitions/")
                paths |= dict(_paths(resource, served))
        return {
            "swagger": "2.0",
            "info": {"title": "Kubernetes", "version": _VERSION},
            "paths": paths,
            "definitions": definitions,
        }

    def _add_schema(
        self, schemas: JsonObject, resource: Resource, served: Served, prefix: str
    ) -> None:
        if resource.custom:
            self._add(schemas, OBJECT_META, prefix)
            schemas[served.definition] = _custom_schema(resource, served, prefix)
        else:
            self._add(schemas, served.definition, prefix)

    def _add(self, schemas: JsonObject, name: str, prefix: str) -> None:
        if name in schemas:
            return
        schemas[name] = {}
        pending: list[str] = []
        schemas[name] = _referenced(self._types.definition(name), prefix, pending)
        for reference in pending:
            self._add(schemas, reference, prefix)


def _referenced(schema: JsonObject, prefix: str, pending: list[str]) -> JsonObject:
    """Write references in full, and note them."""
    result: JsonObject = {}
    for key, value in schema.items():
        match key:
            case "x-zero":
                continue
            case "$ref":
                pending.append(value)
                target = {"$ref": prefix + value}
                if not schema.keys() - {"$ref", "x-zero"} or prefix == "#/definitions/":
                    result["$ref"] = target["$ref"]
                else:
                    result["allOf"] = [target]
            case "properties":
                result[key] = {n: _referenced(child, prefix, pending) for n, child in value.items()}
            case "items" | "additionalProperties" if isinstance(value, dict):
                result[key] = _referenced(value, prefix, pending)
            case _:
                result[key] = value
    return result


def _custom_schema(resource: Resource, served: Served, prefix: str) -> JsonObject:
    schema = dict(served.schema or {"type": "object", "x-kubernetes-preserve-unknown-fields": True})
    text = {"type": "string"}
    properties = {"apiVersion": text, "kind": text, **(schema.get("properties") or {})}
    properties["metadata"] = {"$ref": prefix + OBJECT_META}
    schema["properties"] = properties
    gvk = {"group": resource.group, "version": served.version, "kind": resource.kind}
    schema["x-kubernetes-group-version-kind"] = [gvk]
    return schema


def _paths(resource: Resource, served: Served) -> Iterator[tuple[str, JsonObject]]:
    base = f"/apis/{resource.group}" if resource.group else "/api"
    base = f"{base}/{served.version}"
    place = f"{base}/namespaces/{{namespace}}" if resource.namespaced else base
    yield (
        f"{place}/{resource.plural}",
        _operations(resource, served, {"list": "get", "create": "post"}),
    )
    named = {"get": "get", "update": "put", "patch": "patch", "delete": "delete"}
    yield f"{place}/{resource.plural}/{{name}}", _operations(resource, served, named)


def _operations(resource: Resource, served: Served, methods: dict[str, str]) -> JsonObject:
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
