"""Objects that tests create: the least that a server accepts, and what a test adds."""

from __future__ import annotations

import uuid
from typing import Any

from kubeloop.objects.meta import JsonObject


def config_map(name: str, data: dict[str, str] | None = None, **metadata: Any) -> JsonObject:
    made = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, **metadata}}
    return made | {"data": data} if data is not None else made


def pod_spec(**spec: Any) -> JsonObject:
    container = {"name": "main", "image": "web:1"}
    return {"containers": [container], "terminationGracePeriodSeconds": 5, **spec}


def pod(name: str, *, metadata: JsonObject | None = None, **spec: Any) -> JsonObject:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, **(metadata or {})},
        "spec": pod_spec(**spec),
    }


def template(labels: dict[str, str], *, image: str = "web:1", **spec: Any) -> JsonObject:
    container = {"name": "main", "image": image, "ports": [{"name": "http", "containerPort": 80}]}
    return {"metadata": {"labels": labels}, "spec": pod_spec(containers=[container], **spec)}


def deployment(name: str = "web", replicas: int = 0, **spec: Any) -> JsonObject:
    """A Deployment, of no pods unless asked, so that controllers have nothing to add."""
    labels = {"app": name}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": template(labels),
            **spec,
        },
    }


def replica_set(name: str = "web", replicas: int = 0, **spec: Any) -> JsonObject:
    return {**deployment(name, replicas, **spec), "kind": "ReplicaSet"}


def stateful_set(name: str = "db", replicas: int = 0, **spec: Any) -> JsonObject:
    made = deployment(name, replicas, serviceName=name, **spec)
    return {**made, "kind": "StatefulSet"}


def service(name: str = "web", **spec: Any) -> JsonObject:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name},
        "spec": {"selector": {"app": name}, "ports": [{"name": "http", "port": 80}], **spec},
    }


def endpoint_slice(name: str, **fields: Any) -> JsonObject:
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": name},
        "addressType": "IPv4",
        "endpoints": [{"addresses": ["10.200.3.4"]}],
        "ports": [{"name": "http", "port": 80, "protocol": "TCP"}],
        **fields,
    }


def lease(name: str, **spec: Any) -> JsonObject:
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": name},
        "spec": spec,
    }


SHARED_GROUP = "widgets.example.com"


def new_group() -> str:
    """An API group of a test's own: definitions are cluster-wide and stay until the end."""
    return f"g{uuid.uuid4().hex[:10]}.example.com"


WIDGET_SCHEMA: JsonObject = {
    "type": "object",
    "properties": {
        "spec": {
            "type": "object",
            "properties": {
                "size": {"type": "string", "enum": ["small", "large"], "default": "small"},
                "replicas": {"type": "integer", "minimum": 0, "maximum": 10},
                "port": {"x-kubernetes-int-or-string": True},
                "note": {"type": "string", "nullable": True, "maxLength": 8, "pattern": "^[a-z]*$"},
                "tags": {
                    "type": "array",
                    "items": {"type": "string"},
                    "x-kubernetes-list-type": "set",
                },
                "parts": {
                    "type": "array",
                    "x-kubernetes-list-type": "map",
                    "x-kubernetes-list-map-keys": ["name"],
                    "items": {
                        "type": "object",
                        "required": ["name"],
                        "properties": {
                            "name": {"type": "string"},
                            "count": {"type": "integer"},
                            "mode": {"type": "string", "default": "auto"},
                        },
                    },
                },
                "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
            },
        },
        "status": {
            "type": "object",
            "properties": {
                "replicas": {"type": "integer"},
                "phase": {"type": "string"},
                "selector": {"type": "string"},
            },
        },
    },
}


def version(name: str = "v1", *, storage: bool = True, **more: Any) -> JsonObject:
    return {
        "name": name,
        "served": True,
        "storage": storage,
        "schema": {"openAPIV3Schema": WIDGET_SCHEMA},
        **more,
    }


def definition(group: str, *versions: JsonObject, **names: Any) -> JsonObject:
    """A definition of Widgets."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"widgets.{group}"},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {
                "plural": "widgets",
                "singular": "widget",
                "kind": "Widget",
                "listKind": "WidgetList",
                **names,
            },
            "versions": list(versions) or [version()],
        },
    }


def widget(group: str, name: str = "w", *, api: str = "v1", **spec: Any) -> JsonObject:
    return {
        "apiVersion": f"{group}/{api}",
        "kind": "Widget",
        "metadata": {"name": name},
        "spec": spec,
    }
