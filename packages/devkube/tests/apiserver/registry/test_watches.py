"""Watches over HTTP: selectors, versions, bookmarks, initial events, ends."""

from __future__ import annotations

import asyncio

import pytest
from tests.apiserver.harness import CONFIG_MAPS, config_map

PARTIAL = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"


async def test_a_watch_without_a_version_begins_with_what_exists(kube):
    await kube.create(CONFIG_MAPS, config_map("a"))
    async with kube.watch(CONFIG_MAPS) as events:
        assert await events.take(1) == [("ADDED", "a")]
        await kube.create(CONFIG_MAPS, config_map("b"))
        await kube.merge(f"{CONFIG_MAPS}/a", {"data": {"x": "y"}})
        await kube.delete(f"{CONFIG_MAPS}/a")
        assert await events.take(3) == [("ADDED", "b"), ("MODIFIED", "a"), ("DELETED", "a")]


async def test_a_watch_from_a_version_shows_what_came_after_it(kube):
    made = await kube.create(CONFIG_MAPS, config_map("a"))
    await kube.create(CONFIG_MAPS, config_map("b"))
    version = made["metadata"]["resourceVersion"]
    async with kube.watch(CONFIG_MAPS, resourceVersion=version) as events:
        assert await events.take(1) == [("ADDED", "b")]


async def test_a_deleted_event_carries_the_version_of_the_deletion(kube):
    made = await kube.create(CONFIG_MAPS, config_map("a"))
    async with kube.watch(
        CONFIG_MAPS, resourceVersion=made["metadata"]["resourceVersion"]
    ) as events:
        await kube.delete(f"{CONFIG_MAPS}/a")
        event = await events.next()
    assert int(event["object"]["metadata"]["resourceVersion"]) > int(
        made["metadata"]["resourceVersion"]
    )


async def test_entering_and_leaving_a_selector_are_added_and_deleted(kube):
    await kube.create(CONFIG_MAPS, config_map("a", {"on": "no"}))
    async with kube.watch(CONFIG_MAPS, labelSelector="on=yes") as events:
        for value in ("yes", "yes", "no"):
            await kube.merge(
                f"{CONFIG_MAPS}/a", {"metadata": {"labels": {"on": value}}, "data": {"v": value}}
            )
        await kube.merge(f"{CONFIG_MAPS}/a", {"metadata": {"labels": {"on": "yes"}}})
        await kube.merge(f"{CONFIG_MAPS}/a", {"data": {"v": "last"}})
        await kube.delete(f"{CONFIG_MAPS}/a")
        assert await events.take(5) == [
            ("ADDED", "a"),
            ("DELETED", "a"),
            ("ADDED", "a"),
            ("MODIFIED", "a"),
            ("DELETED", "a"),
        ]


async def test_one_object_can_be_watched(kube):
    async with kube.watch(CONFIG_MAPS, fieldSelector="metadata.name=b") as events:
        await kube.create(CONFIG_MAPS, config_map("a"))
        await kube.create(CONFIG_MAPS, config_map("b"))
        assert await events.take(1) == [("ADDED", "b")]


async def test_initial_events_end_with_a_marked_bookmark(kube):
    await kube.create(CONFIG_MAPS, config_map("a"))
    query = {
        "sendInitialEvents": "true",
        "resourceVersionMatch": "NotOlderThan",
        "allowWatchBookmarks": "true",
    }
    async with kube.watch(CONFIG_MAPS, **query) as events:
        assert await events.take(1) == [("ADDED", "a")]
        bookmark = await events.next()
        assert bookmark["type"] == "BOOKMARK"
        assert bookmark["object"]["metadata"]["annotations"] == {
            "k8s.io/initial-events-end": "true"
        }
        assert (bookmark["object"]["kind"], bookmark["object"]["apiVersion"]) == ("ConfigMap", "v1")
        await kube.create(CONFIG_MAPS, config_map("b"))
        assert await events.take(1) == [("ADDED", "b")]


async def test_a_watch_ends_after_its_time_with_a_bookmark_shortly_before(kube):
    async with kube.watch(CONFIG_MAPS, timeoutSeconds="3", allowWatchBookmarks="true") as events:
        rest = await events.rest()
    assert [event["type"] for event in rest] == ["BOOKMARK"]
    version = (await kube.get(CONFIG_MAPS))["metadata"]["resourceVersion"]
    assert rest[0]["object"]["metadata"]["resourceVersion"] == version


async def test_a_version_before_the_kept_history_is_expired(kube):
    made = await kube.create(CONFIG_MAPS, config_map("a"))
    await kube.create(CONFIG_MAPS, config_map("b"))
    kube.server.core.store.compact()
    async with kube.watch(
        CONFIG_MAPS, resourceVersion=made["metadata"]["resourceVersion"]
    ) as events:
        event = await events.next()
        assert (event["type"], event["object"]["reason"]) == ("ERROR", "Expired")


async def test_a_version_from_the_future_is_too_large(kube):
    async with kube.watch(CONFIG_MAPS, resourceVersion="99999") as events:
        assert events.code == 504


async def test_events_come_in_the_asked_representation(kube):
    async with (
        kube.watch(CONFIG_MAPS, accept=PARTIAL) as events,
        kube.watch(CONFIG_MAPS, accept=TABLE) as rows,
    ):
        await kube.create(CONFIG_MAPS, config_map("a", x="y"))
        event = await events.next()
        row = await rows.next()
    assert event["object"]["kind"] == "PartialObjectMetadata"
    assert "data" not in event["object"]
    assert row["object"]["rows"][0]["cells"][:2] == ["a", 1]


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
