"""Waiting for an object: as it should be, or gone, across ended watches and refusals."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from kubeloop.client import Forbidden, has_condition, wait_for, wait_until_deleted
from kubeloop.objects.conditions import Condition
from kubeloop.objects.meta import JsonObject, ObjectMeta
from kubeloop.testing.fake_client import FakeClient
from kubeloop.testing.fake_errors import api_error

pytestmark = pytest.mark.virtual_time
PODS = "v1/pods"


class Status(msgspec.Struct):
    conditions: tuple[Condition, ...] = ()


class Pod(msgspec.Struct):
    metadata: ObjectMeta
    status: Status = msgspec.field(default_factory=Status)


def pod(name: str = "a", ready: str = "", **metadata: object) -> JsonObject:
    conditions = [{"type": "Ready", "status": ready, "message": "no image"}] if ready else []
    meta = {"name": name, **metadata}
    status = {"status": {"conditions": conditions}} if ready else {}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, **status}


async def test_an_object_is_returned_when_it_exists_and_the_condition_holds() -> None:
    client = FakeClient(pod("other", "True"))
    pods = client.resource(PODS, namespace="default")
    waiting = asyncio.create_task(wait_for(pods, "a", has_condition("Ready")))
    await asyncio.sleep(1)
    client.put(pod(ready="False"))
    await asyncio.sleep(1)
    client.source(PODS).drop_watches()
    await asyncio.sleep(5)
    assert not waiting.done()
    client.put(pod(ready="True"))
    assert (await waiting)["metadata"]["name"] == "a"


async def test_what_holds_already_is_returned_at_once_as_a_struct_too() -> None:
    async def asked(found: Pod) -> bool:
        return bool(has_condition("Ready")(found))

    pods = FakeClient(pod(ready="True")).resource(PODS, Pod)
    found = await wait_for(pods, "a", asked, namespace="default")
    assert found.status.conditions[0].status == "True"


async def test_a_timeout_says_what_was_last_seen() -> None:
    client = FakeClient()
    pods = client.resource(PODS, namespace="default")
    with pytest.raises(TimeoutError, match=r"v1/pods a: .* in 5 s; last seen: it does not exist"):
        await wait_for(pods, "a", bool, timeout=5)
    client.put(pod(ready="False"))
    with pytest.raises(TimeoutError, match="last seen: Ready=False no image"):
        await wait_for(pods, "a", has_condition("Ready"), timeout=5)


async def test_a_refusal_is_raised_and_an_outage_is_waited_for() -> None:
    client = FakeClient(pod(ready="True"))
    pods = client.resource(PODS, namespace="default")
    client.fail_next(api_error(403, "Forbidden", "no"), path="pods")
    with pytest.raises(Forbidden):
        await wait_for(pods, "a", bool)
    client.fail_next(api_error(429, "TooManyRequests", "slow", retry_after_seconds=7), path="pods")
    began = asyncio.get_running_loop().time()
    await wait_for(pods, "a", bool)
    assert asyncio.get_running_loop().time() - began == pytest.approx(7)


async def test_a_deletion_is_waited_for_and_a_successor_counts_as_gone() -> None:
    client = FakeClient(pod(finalizers=["x.io/a"]))
    pods = client.resource(PODS, namespace="default")
    client.remove(PODS, "a")
    with pytest.raises(TimeoutError, match=r"not deleted in 5 s; its finalizers are x\.io/a"):
        await wait_until_deleted(pods, "a", timeout=5)
    waiting = asyncio.create_task(wait_until_deleted(pods, "a"))
    await asyncio.sleep(1)
    client.put(pod(finalizers=[]) | {"metadata": {"name": "a", "finalizers": []}})
    client.remove(PODS, "a")
    await waiting
    await wait_until_deleted(pods, "a")
