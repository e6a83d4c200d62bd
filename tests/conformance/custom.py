"""Custom resource definitions, made and ready to use."""

from __future__ import annotations

import asyncio
import contextlib

from kubeloop.client import AlreadyExists
from kubeloop.client.resource import Resource
from kubeloop.objects.meta import JsonObject
from tests.conformance.kube import Kube, eventually
from tests.conformance.manifests import SHARED_GROUP, definition, new_group, widget

DEFINITIONS = "apiextensions.k8s.io/v1/customresourcedefinitions"


def condition(obj: JsonObject, kind: str) -> JsonObject | None:
    """Return one of an object's conditions."""
    found = [c for c in obj.get("status", {}).get("conditions") or [] if c["type"] == kind]
    return found[0] if found else None


async def install(kube: Kube, made: JsonObject) -> JsonObject:
    """Create a definition and wait until every version that it serves answers."""
    await kube.cluster(DEFINITIONS).create(made)
    return await ready(kube, made)


async def ready(kube: Kube, made: JsonObject) -> JsonObject:
    """Wait until a definition is established and every version that it serves answers."""

    async def established() -> JsonObject | None:
        now = await kube.cluster(DEFINITIONS).get(made["metadata"]["name"])
        found = condition(now, "Established")
        return now if found and found["status"] == "True" else None

    async def served() -> bool:
        for version in made["spec"]["versions"]:
            path = (
                f"/apis/{made['spec']['group']}/{version['name']}/{made['spec']['names']['plural']}"
            )
            if version["served"] and (await kube.raw.get(path)).status != 200:
                return False
        return True

    now: JsonObject = await eventually(established)
    await eventually(served)
    return now


async def shared_widgets(kube: Kube) -> Resource[JsonObject]:
    """Widgets as `WIDGET_SCHEMA` has them, in the test's namespace, of a definition that all share."""
    with contextlib.suppress(AlreadyExists):
        await kube.cluster(DEFINITIONS).create(definition(SHARED_GROUP))
    await ready(kube, definition(SHARED_GROUP))
    return kube.of(f"{SHARED_GROUP}/v1/widgets")


async def own_widgets(kube: Kube, *versions: JsonObject, **names: object) -> Resource[JsonObject]:
    """Widgets of a new group; returns them in the test's namespace, at their first version."""
    made = definition(new_group(), *versions, **names)
    await install(kube, made)
    first = made["spec"]["versions"][0]["name"]
    return kube.of(f"{made['spec']['group']}/{first}/widgets")


async def young_widgets(kube: Kube) -> tuple[Resource[JsonObject], str]:
    """Widgets, and a version from before there were any, of which no server keeps the history.

    A real server keeps what it has seen in a cache for each kind, from that kind's beginning.
    """
    version = await kube.version_now()
    widgets = await own_widgets(kube)
    for name in ("a", "b", "c", "d"):
        await widgets.create(widget(widgets.gvr.group, name))
    await asyncio.to_thread(kube.server.compact)
    return widgets, version
