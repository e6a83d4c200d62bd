"""Discovery: which groups, versions and resources there are, in the old documents and the one."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from elasti.devcluster.apiserver.resources import Registry, Resource, Served
    from kubeloop.objects.meta import JsonObject

AGGREGATED = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
_KINDS = {
    "scale": ("autoscaling", "v1", "Scale"),
    "eviction": ("policy", "v1", "Eviction"),
    "token": ("authentication.k8s.io", "v1", "TokenRequest"),
    "binding": ("", "v1", "Binding"),
}
_CREATED = ("eviction", "token", "binding")
_READ = ("log",)


class Discovery:
    """The documents, made from the registry when asked."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def document(self, path: str, accept: str, address: str) -> tuple[JsonObject, str] | None:
        """Return a discovery document and its content type; None for other paths."""
        parts = path.strip("/").split("/")
        if parts in (["api"], ["apis"]) and _wants_one_document(accept):
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


def _wants_one_document(accept: str) -> bool:
    return "g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList" in accept


def subresource_verbs(name: str) -> list[str]:
    """Return the verbs that a subresource has."""
    if name in _CREATED:
        return ["create"]
    if name in _READ:
        return ["get"]
    return ["update"] if name == "finalize" else ["get", "patch", "update"]


def _entries(resource: Resource, served: Served) -> Iterator[JsonObject]:
    entry: JsonObject = {
        "name": resource.plural,
        "singularName": resource.singular,
        "namespaced": resource.namespaced,
        "kind": resource.kind,
        "verbs": list(resource.verbs),
    }
    if resource.short_names:
        entry["shortNames"] = list(resource.short_names)
    if resource.categories:
        entry["categories"] = list(resource.categories)
    yield entry
    for name in sorted(served.subresources):
        yield _subresource_entry(resource, name)


def _subresource_entry(resource: Resource, name: str) -> JsonObject:
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


def _response_kind(resource: Resource, group: str, version: str) -> JsonObject:
    """Name a kind; a built-in one's group and version are those that it is listed under."""
    if resource.custom:
        return {"group": group, "version": version, "kind": resource.kind}
    return {"group": "", "version": "", "kind": resource.kind}


def _aggregated_entry(resource: Resource, served: Served, group: str, version: str) -> JsonObject:
    entry: JsonObject = {
        "resource": resource.plural,
        "responseKind": _response_kind(resource, group, version),
        "scope": "Namespaced" if resource.namespaced else "Cluster",
        "singularResource": resource.singular,
        "verbs": list(resource.verbs),
    }
    if resource.short_names:
        entry["shortNames"] = list(resource.short_names)
    if resource.categories:
        entry["categories"] = list(resource.categories)
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
