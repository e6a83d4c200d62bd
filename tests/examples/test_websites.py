"""The controller of a custom resource on a cluster: made, reported, refused, repaired, taken down."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import signal
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
from kubeloop.operator import make_manager
from tests.examples.processes import EXAMPLES, started
from tests.waiting import eventually


@pytest.fixture(params=["websites.py", "websites_short.py"])
def example(request: pytest.FixtureRequest) -> ModuleType:
    """The long form and the short one, which do the same."""
    spec = importlib.util.spec_from_file_location("websites_example", EXAMPLES / request.param)
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
        manager = (
            make_manager(run.client, example.websites, health_port=0)
            if hasattr(example, "websites")
            else example.make_manager(run.client, identity="test", health_port=0)
        )
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


async def test_a_text_that_is_too_long_is_reported_in_condition_and_event(cluster: Running) -> None:
    await eventually(lambda: ready(cluster, "True"))
    await websites(cluster).patch("hello", MergePatch({"spec": {"text": "x" * 2000}}))
    (condition,) = await eventually(lambda: ready(cluster, "False"))
    assert condition["message"] == "spec.text has 2000 characters; 1000 are the most"

    async def events() -> list[str]:
        found = cluster.client.resource("v1/events", namespace="default")
        return [e["reason"] async for e in found.items() if e["involvedObject"]["name"] == "hello"]

    assert "TooLong" in await eventually(events)


async def test_short_form_as_a_program_creates_its_definition_leads_and_stops_on_ctrl_c(
    tmp_path: Path,
) -> None:
    async with running(tmp_path, nodes=0) as run:
        async with started("websites_short.py", run.kubectl.kubeconfig) as process:
            website = yaml.safe_load((EXAMPLES / "hello.yaml").read_text())
            await eventually(lambda: created(websites(run), website))
            await eventually(lambda: ready(run, "True"))
            leases = run.client.resource("coordination.k8s.io/v1/leases", namespace="default")
            assert (await leases.get("websites"))["spec"]["holderIdentity"]
            process.send_signal(signal.SIGINT)
            output, errors = await process.communicate()
            assert b"Traceback" not in output + errors
            assert process.returncode == 0
            assert not (await leases.get("websites"))["spec"]["holderIdentity"]


async def test_short_form_ends_with_one_line_if_it_cannot_connect(tmp_path: Path) -> None:
    async with started("websites_short.py", tmp_path / "missing") as process:
        _, errors = await process.communicate()
        (line,) = errors.decode().splitlines()
        assert line.startswith("websites: ")
        assert process.returncode == 1


def test_short_form_has_at_most_sixty_lines() -> None:
    assert len((EXAMPLES / "websites_short.py").read_text().splitlines()) <= 60
