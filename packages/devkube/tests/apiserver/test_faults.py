"""Faults on demand."""

from __future__ import annotations

import asyncio

import pytest
from tests.apiserver.harness import CONFIG_MAPS, config_map, connected

from devkube.apiserver.calls import Attributes
from devkube.apiserver.faults import FaultInjector, InjectedFault
from devkube.apiserver.status import StatusError
from devkube.apiserver.storage import ObjectStore

FAULTS = "/_dev/faults"


async def test_an_answer_is_injected_a_number_of_times(kube):
    command = {"add": {"code": 429, "retryAfter": 3, "count": 2, "path": "/api/v1"}}
    assert (await kube.create(FAULTS, command)).code == 200
    replies = [await kube.get(CONFIG_MAPS) for _ in range(3)]
    assert [reply.code for reply in replies] == [429, 429, 200]
    assert replies[0].headers["Retry-After"] == "3"
    assert replies[0]["details"]["retryAfterSeconds"] == 3


async def test_a_fault_may_be_for_one_verb_and_is_cleared(kube):
    await kube.create(FAULTS, {"add": {"code": 503, "verb": "create"}})
    assert (await kube.create(CONFIG_MAPS, config_map("a"))).code == 503
    assert (await kube.get(CONFIG_MAPS)).code == 200
    standing = await kube.get(FAULTS)
    assert standing["standing"] == [{"code": 503, "verb": "create"}]
    await kube.create(FAULTS, {"clear": True})
    assert (await kube.create(CONFIG_MAPS, config_map("a"))).code == 201


@pytest.mark.virtual_time
async def test_a_fault_ends_with_its_time():
    faults = FaultInjector(ObjectStore())
    faults.add(InjectedFault(code=500, seconds=10))
    request = Attributes(verb="get", path="/api/v1/pods")
    with pytest.raises(StatusError):
        await faults.inject(request)
    await asyncio.sleep(9.9)
    with pytest.raises(StatusError):
        await faults.inject(request)
    await asyncio.sleep(0.1)
    await faults.inject(request)


@pytest.mark.virtual_time
async def test_a_delay_takes_exactly_its_time():
    faults = FaultInjector(ObjectStore())
    faults.add(InjectedFault(delay=2.5, count=1))
    loop = asyncio.get_running_loop()
    start = loop.time()
    await faults.inject(Attributes(verb="get", path="/api"))
    assert loop.time() - start == 2.5
    await faults.inject(Attributes(verb="get", path="/api"))
    assert loop.time() - start == 2.5


async def test_a_stall_lasts_until_it_is_cleared(kube):
    await kube.create(FAULTS, {"add": {"delay": -1, "path": "/api/v1"}})
    stalled = asyncio.create_task(kube.get(CONFIG_MAPS))
    done, _ = await asyncio.wait([stalled], timeout=0.3)
    assert not done
    await kube.create(FAULTS, {"clear": True})
    assert (await stalled).code == 200


async def test_watches_are_dropped_and_new_ones_live(kube):
    async with kube.watch(CONFIG_MAPS) as events:
        await kube.create(CONFIG_MAPS, config_map("a"))
        await events.next()
        await kube.create(FAULTS, {"dropWatches": True})
        with pytest.raises(EOFError):
            await events.next()
    async with kube.watch(CONFIG_MAPS) as events:
        assert await events.take(1) == [("ADDED", "a")]


async def test_compaction_expires_older_versions(kube):
    made = await kube.create(CONFIG_MAPS, config_map("a"))
    await kube.create(CONFIG_MAPS, config_map("b"))
    await kube.create(FAULTS, {"compact": True})
    async with kube.watch(
        CONFIG_MAPS, resourceVersion=made["metadata"]["resourceVersion"]
    ) as events:
        assert (await events.next())["object"]["code"] == 410


async def test_only_administrators_make_faults(kube):
    async with connected(kube.server, user="mallory", groups=()) as mallory:
        assert (await mallory.create(FAULTS, {"clear": True})).code == 403
    assert (await kube.create(FAULTS, {"explode": True})).code == 400
