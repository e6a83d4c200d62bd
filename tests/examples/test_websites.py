"""The controller of a custom resource on a cluster: made, reported, refused, repaired, taken down."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from tests.cluster_support import Running, running

from kubeloop.client import NotFound, Resource
from kubeloop.objects.meta import JsonObject
from kubeloop.objects.patches import MergePatch
from tests.examples.processes import EXAMPLES
from tests.waiting import eventually


@pytest.fixture
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("websites_example", EXAMPLES / "websites.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
async def cluster(
    tmp_path: Path, example: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Running]:
    definition, website = (
        yaml.safe_load((EXAMPLES / name).read_text()) for name in ("websites.yaml", "hello.yaml")
    )
    async with running(tmp_path, nodes=0) as run:
        monkeypatch.setenv("KUBECONFIG", str(run.kubectl.kubeconfig))
        await run.client.resource("apiextensions.k8s.io/v1/customresourcedefinitions").create(
            definition
        )
        sites = websites(run)
        await eventually(lambda: created(sites, website))
        manager = example.make_manager(run.client, identity="test", health_port=0)
        task = asyncio.create_task(manager.run())
        yield run
        manager.stop()
        await task


def websites(run: Running) -> Resource[JsonObject]:
    return run.client.resource("example.com/v1/websites", namespace="default")


async def created(sites: Resource[JsonObject], website: JsonObject) -> bool:
    # A definition is served a moment after it was accepted.
    with contextlib.suppress(NotFound):
        await sites.create(website)
        return True
    return False


async def ready(run: Running, status: str) -> Any:
    found = (await websites(run).get("hello")).get("status", {}).get("conditions", [])
    return [c for c in found if (c["type"], c["status"]) == ("Ready", status)]


async def test_a_website_is_published_reported_repaired_and_taken_down(cluster: Running) -> None:
    pages = cluster.client.resource("v1/configmaps", namespace="default")
    await eventually(lambda: ready(cluster, "True"))
    page = await pages.get("hello")
    assert page["data"] == {"index.html": "<h1>Hello</h1>"}
    assert page["metadata"]["ownerReferences"][0]["kind"] == "Website"
    assert (await websites(cluster).get("hello"))["status"]["page"] == "hello"

    await pages.delete("hello")

    async def is_back() -> bool:
        with contextlib.suppress(NotFound):
            return bool((await pages.get("hello"))["metadata"]["uid"] != page["metadata"]["uid"])
        return False

    await eventually(is_back)
    await websites(cluster).delete("hello")

    async def is_gone() -> bool:
        with contextlib.suppress(NotFound):
            await websites(cluster).get("hello")
            return False
        return True

    await eventually(is_gone)


async def test_a_text_that_is_too_long_is_told_in_condition_and_event(cluster: Running) -> None:
    await eventually(lambda: ready(cluster, "True"))
    await websites(cluster).patch("hello", MergePatch({"spec": {"text": "x" * 2000}}))
    (condition,) = await eventually(lambda: ready(cluster, "False"))
    assert condition["message"] == "spec.text has 2000 characters; 1000 are the most"

    async def events() -> list[str]:
        found = cluster.client.resource("v1/events", namespace="default")
        return [e["reason"] async for e in found.items() if e["involvedObject"]["name"] == "hello"]

    assert "TooLong" in await eventually(events)
