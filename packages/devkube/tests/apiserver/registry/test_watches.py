"""Watches over HTTP: selectors, versions, bookmarks, initial events, ends."""

from __future__ import annotations

import asyncio

import pytest
from tests.apiserver.harness import CONFIG_MAPS, config_map

PARTIAL = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"


async def test_a_client_that_leaves_leaves_nothing_behind(kube):
    before = asyncio.all_tasks()
    for _ in range(3):
        async with kube.watch(CONFIG_MAPS):
            pass
    started = asyncio.all_tasks() - before
    if started:
        _, pending = await asyncio.wait(started, timeout=5)
        assert not pending


@pytest.mark.slow
async def test_a_hundred_watchers_see_every_write_in_order(kube):
    writes, watchers = 200, 100

    async def follow():
        async with kube.watch(CONFIG_MAPS) as events:
            started.release()
            return [
                (await events.next())["object"]["metadata"]["resourceVersion"]
                for _ in range(writes)
            ]

    started = asyncio.Semaphore(0)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(follow()) for _ in range(watchers)]
        for _ in range(watchers):
            await started.acquire()
        for number in range(writes):
            await kube.create(CONFIG_MAPS, config_map(f"n{number:04d}"))
    seen = {tuple(task.result()) for task in tasks}
    assert len(seen) == 1
    (versions,) = seen
    assert list(versions) == sorted(versions, key=int)
    assert len(set(versions)) == writes
