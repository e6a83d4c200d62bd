"""Discovery documents as servers write them, both generations, saying the same."""

from __future__ import annotations

from kubeloop.objects.meta import JsonObject

READ = ["get", "list", "watch"]
WRITE = ["create", "delete", *READ, "patch", "update"]


def aggregated_resource(
    plural: str, kind: str, *, scope: str = "Namespaced", **fields: object
) -> JsonObject:
    return {
        "resource": plural,
        "responseKind": {"group": "", "version": "", "kind": kind},
        "scope": scope,
        "singularResource": kind.lower(),
        "verbs": WRITE,
        **fields,
    }


def aggregated_group(name: str, *versions: JsonObject) -> JsonObject:
    return {"metadata": {"name": name} if name else {}, "versions": list(versions)}


def version(name: str, *resources: JsonObject, freshness: str = "Current") -> JsonObject:
    return {"version": name, "resources": list(resources), "freshness": freshness}


def aggregated(*groups: JsonObject, api: str = "v2") -> JsonObject:
    return {
        "kind": "APIGroupDiscoveryList",
        "apiVersion": f"apidiscovery.k8s.io/{api}",
        "metadata": {},
        "items": list(groups),
    }


PODS = aggregated_resource(
    "pods",
    "Pod",
    shortNames=["po"],
    categories=["all"],
    subresources=[
        {"subresource": "status", "responseKind": {"kind": "Pod"}, "verbs": ["get"]},
        {"subresource": "log", "responseKind": {"kind": "Pod"}, "verbs": ["get"]},
    ],
)
NODES = aggregated_resource("nodes", "Node", scope="Cluster", shortNames=["no"])
EVENTS = aggregated_resource("events", "Event", shortNames=["ev"])
DEPLOYMENTS = aggregated_resource(
    "deployments",
    "Deployment",
    shortNames=["deploy"],
    subresources=[{"subresource": "scale", "responseKind": {"kind": "Scale"}}],
)

CORE = aggregated(aggregated_group("", version("v1", PODS, NODES, EVENTS)))
GROUPS = aggregated(
    aggregated_group("apps", version("v1", DEPLOYMENTS), version("v1beta1", DEPLOYMENTS)),
    aggregated_group("events.k8s.io", version("v1", EVENTS)),
    aggregated_group("metrics.k8s.io", version("v1beta1", freshness="Stale")),
)


def legacy_resource(plural: str, kind: str, **fields: object) -> JsonObject:
    return {"name": plural, "kind": kind, "namespaced": True, "verbs": WRITE, **fields}


def legacy_list(*resources: JsonObject) -> JsonObject:
    return {"kind": "APIResourceList", "resources": list(resources)}


LEGACY_ROOT = {"kind": "APIVersions", "versions": ["v1"]}
LEGACY_GROUPS = {
    "kind": "APIGroupList",
    "groups": [
        {
            "name": "apps",
            "versions": [{"version": "v1beta1"}, {"version": "v1"}],
            "preferredVersion": {"version": "v1"},
        },
        {"name": "metrics.k8s.io", "versions": [{"version": "v1beta1"}]},
    ],
}
LEGACY_CORE = legacy_list(
    legacy_resource("pods", "Pod", shortNames=["po"], categories=["all"], singularName="pod"),
    legacy_resource("pods/status", "Pod"),
    legacy_resource("pods/log", "Pod"),
    legacy_resource("nodes", "Node", namespaced=False, singularName="", shortNames=["no"]),
)
LEGACY_APPS = legacy_list(
    legacy_resource("deployments", "Deployment", shortNames=["deploy"]),
    legacy_resource("deployments/scale", "Scale"),
)
