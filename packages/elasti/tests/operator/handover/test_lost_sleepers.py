"""Targets that sleep when their Service goes, their kind cannot be read, or the spec names another: all are woken."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.operator.environment import Environment, FakeTrigger, subject

from elasti.operator.model.children import slice_names
from elasti.operator.watch.targets import TargetWatcher
from kubeloop.client.request import Request
from kubeloop.objects.meta import JsonObject
from kubeloop.testing.fake_errors import api_error
from tests.waiting import eventually

pytestmark = pytest.mark.virtual_time

BLUE = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "blue"}
OBSERVE = {"policy": "Observe", "suspend": True}


@pytest.fixture(autouse=True)
def _triggers(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeTrigger.install(monkeypatch)


def lose_service(env: Environment) -> JsonObject:
    """Delete the Service, as a rename does; garbage collection takes our slice along."""
    found = env.get("services")
    env.delete("services")
    env.delete("endpointslices", slice_names("web")["IPv4"])
    return found


async def test_a_deletion_without_the_service_wakes_the_target():
    env = Environment()
    env.web()
    async with env.operator():
        await env.becomes("Proxy")
        lose_service(env)
        await asyncio.sleep(60)
        env.delete("elastiservices")
        await eventually(lambda: env.es is None, timeout=60.0)
        assert env.replicas == 1


async def test_a_deletion_while_the_kind_cannot_be_read_waits_and_wakes_the_target(
    monkeypatch: pytest.MonkeyPatch,
):
    async def refuse(*_: object) -> None:
        raise api_error(403, "Forbidden", "not now")

    env = Environment()
    env.web()
    async with env.operator():
        await env.becomes("Proxy")
        with monkeypatch.context() as patched:
            patched.setattr(TargetWatcher, "follow", refuse)
            env.delete("elastiservices")
            await asyncio.sleep(env.settings.finalize_wait / 2)
            assert env.published
        await eventually(lambda: env.es is None, timeout=120.0)
        assert (env.replicas, env.published) == (1, False)


async def test_a_deletion_gives_the_previous_replicas_back():
    env = Environment()
    env.web(3, wake={"replicas": "Previous"})
    async with env.operator():
        await env.becomes("Proxy")
        env.delete("elastiservices")
        await eventually(lambda: env.es is None, timeout=60.0)
        assert env.replicas == 3


@pytest.mark.parametrize("change", ["headless", "suspend", "observe"])
async def test_a_sleeper_whose_slice_went_with_its_service_is_woken(change: str):
    env = Environment()
    env.web()
    async with env.operator():
        await env.becomes("Proxy")
        service = lose_service(env)
        await asyncio.sleep(60)
        assert env.replicas == 0, "nothing asked for it yet"
        if change == "headless":
            service["spec"]["clusterIP"] = "None"
        else:
            env.change("elastiservices", spec=OBSERVE if change == "observe" else {"suspend": True})
        env.put("services", {"spec": service["spec"]})
        await eventually(lambda: env.replicas == 1, timeout=120.0)
        env.scale(0)
        await asyncio.sleep(600)
        assert env.replicas == 0, "a person's zero stays"


async def test_a_service_that_comes_back_is_held_again():
    env = Environment()
    env.web()
    async with env.operator():
        await env.becomes("Proxy")
        service = lose_service(env)
        await asyncio.sleep(60)
        env.put("services", {"spec": service["spec"]})
        await eventually(lambda: env.published, timeout=60.0)
        assert (env.state, env.replicas) == ("Proxy", 0)


async def test_the_former_target_of_an_edited_spec_is_woken():
    env = Environment()
    env.web(2, wake={"replicas": "Previous"})
    other: dict[str, Any] = {"replicas": 1, "selector": {}, "template": {}}
    env.put("deployments", {"spec": other}, "blue")
    async with env.operator():
        await env.becomes("Proxy")
        env.change("elastiservices", spec={"scaleTargetRef": BLUE})
        await eventually(lambda: env.replicas == 2, timeout=60.0)
        await eventually(lambda: not env.status.get("targets"), timeout=60.0)


async def test_an_observed_one_wakes_its_workers_however_long_that_takes():
    env = Environment()
    env.put("deployments", {"spec": {"replicas": 2, "selector": {}, "template": {}}}, "worker")
    env.web(targets=[{"apiVersion": "apps/v1", "kind": "Deployment", "name": "worker"}])

    def refuse(write: Request, done: bool) -> None:
        if subject(write) == "deployments/scale" and "/worker/" in write.path and not done:
            raise api_error(403, "Forbidden", "not now")

    async with env.operator() as operator:
        await env.becomes("Proxy")
        await eventually(lambda: env.get("deployments", "worker")["spec"]["replicas"] == 0)
        operator.client.on_write = refuse
        env.change("elastiservices", spec=OBSERVE)
        await asyncio.sleep(3 * env.settings.finalize_wait)
        operator.client.on_write = None
        await eventually(
            lambda: env.get("deployments", "worker")["spec"]["replicas"] == 2, timeout=120.0
        )
