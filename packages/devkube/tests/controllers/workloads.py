"""Deployments, StatefulSets and Services for tests of controllers, and waits for their status."""

from __future__ import annotations

from typing import Any

from tests.controllers.support import Cluster, eventually, template

from kubeloop.objects.meta import JsonObject
from kubeloop.objects.patches import JsonPatch

REVISION = "deployment.kubernetes.io/revision"


async def settled(cluster: Cluster, name: str = "web", replicas: int = 3) -> JsonObject:
    """Wait until a rollout is complete and its history is written."""

    async def complete() -> JsonObject | None:
        found = await cluster.get("deployments", name)
        assert found is not None
        status = found.get("status", {})
        counts = [status.get(f, 0) for f in ("replicas", "updatedReplicas", "availableReplicas")]
        seen = status.get("observedGeneration") == found["metadata"]["generation"]
        reason = conditions(found).get("Progressing", ("", ""))[1]
        done = seen and counts == [replicas] * 3 and reason == "NewReplicaSetAvailable"
        return found if done else None

    found: JsonObject = await eventually(complete)
    return found


def conditions(found: JsonObject) -> dict[str, tuple[str, str]]:
    listed = found.get("status", {}).get("conditions") or []
    return {c["type"]: (c["status"], c["reason"]) for c in listed}


async def set_image(cluster: Cluster, image: str, name: str = "web") -> None:
    path = "/spec/template/spec/containers/0/image"
    await cluster.deployments.patch(
        name, JsonPatch([{"op": "replace", "path": path, "value": image}])
    )


async def sizes(cluster: Cluster) -> dict[str, int]:
    """The ReplicaSets' sizes by revision."""
    return {
        item["metadata"]["annotations"][REVISION]: item["spec"]["replicas"]
        for item in await cluster.list("replicasets")
    }


def service(name: str = "web", **spec: Any) -> JsonObject:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "labels": {"team": "red"}},
        "spec": {
            "selector": {"app": "web"},
            "ports": [{"name": "http", "port": 80, "targetPort": "http"}],
            **spec,
        },
    }


async def slices(cluster: Cluster, name: str = "web") -> list[JsonObject]:
    return await cluster.list("slices", selector=f"kubernetes.io/service-name={name}")


def endpoints_of(found: list[JsonObject]) -> list[JsonObject]:
    return [endpoint for item in found for endpoint in item.get("endpoints") or []]


async def ready_endpoints(cluster: Cluster, number: int) -> list[JsonObject]:
    async def ready() -> list[JsonObject]:
        found = await slices(cluster)
        ready = [e for e in endpoints_of(found) if e["conditions"]["ready"]]
        return found if found and len(ready) == number else []

    found: list[JsonObject] = await eventually(ready)
    return found


def stateful_set(name: str = "db", replicas: int = 3, **spec: Any) -> JsonObject:
    labels = {"app": name}
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "serviceName": "peers",
            "selector": {"matchLabels": labels},
            "template": template(labels),
            **spec,
        },
    }


async def with_status(cluster: Cluster, **wanted: int) -> JsonObject:
    async def has() -> JsonObject | None:
        found = await cluster.get("statefulsets", "db")
        assert found is not None
        status = found.get("status", {})
        seen = status.get("observedGeneration") == found["metadata"]["generation"]
        matches = all(status.get(k, 0) == v for k, v in wanted.items())
        return found if seen and matches else None

    found: JsonObject = await eventually(has)
    return found
