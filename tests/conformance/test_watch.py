"""Watches: where they begin, what they tell, how they end."""

from __future__ import annotations

import asyncio
import contextlib
import time

import pytest

from kubeloop.client.errors import Gone, ServerTimeout, error_from_object, is_version_too_large
from kubeloop.objects.list_watch import BOOKMARK, ERROR, INITIAL_EVENTS_END, WatchOptions
from kubeloop.objects.patches import MergePatch
from tests.conformance.behaviours import behaviour
from tests.conformance.custom import young_widgets
from tests.conformance.kube import Kube, refused
from tests.conformance.manifests import config_map, deployment, pod

MINE = {"mine": "yes"}
SELECT = "mine=yes"


def labelled(name: str, **data: str):
    return config_map(name, data or None, labels=MINE)


@behaviour("watch.events", "Changes come as ADDED, MODIFIED and DELETED, in order, with the object")
async def test_changes_come_in_order(kube: Kube) -> None:
    version = await kube.version_now()
    async with kube.watching(kube.maps, resource_version=version, label_selector=SELECT) as watch:
        made = await kube.maps.create(labelled("a"))
        changed = await kube.maps.patch("a", MergePatch({"data": {"x": "1"}}))
        await kube.maps.delete("a")
        events = await watch.take(3)
    assert [event.type for event in events] == ["ADDED", "MODIFIED", "DELETED"]
    assert [event.object for event in events[:2]] == [made, changed]
    assert events[2].object["data"] == {"x": "1"}
    versions = [int(event.object["metadata"]["resourceVersion"]) for event in events]
    assert versions == sorted(set(versions))


@behaviour("watch.from-list", "A watch from a list's version misses nothing and repeats nothing")
async def test_a_watch_continues_a_list(kube: Kube) -> None:
    await kube.maps.create(labelled("a"))
    version = await kube.version_now()
    await kube.maps.create(labelled("b"))
    async with kube.watching(kube.maps, resource_version=version, label_selector=SELECT) as watch:
        await kube.maps.create(labelled("c"))
        assert await watch.names(2) == [("ADDED", "b"), ("ADDED", "c")]


@behaviour("watch.without-version", "A watch without a version begins with what there is, as ADDED")
@pytest.mark.parametrize("version", ["", "0"])
async def test_a_watch_may_begin_with_what_there_is(kube: Kube, version: str) -> None:
    await kube.maps.create(labelled("b"))
    await kube.maps.create(labelled("a"))
    now = await kube.version_now()
    await kube.maps.get("a", resource_version=now)  # the cache has both now
    async with kube.watching(kube.maps, resource_version=version, label_selector=SELECT) as watch:
        assert sorted(await watch.names(2)) == [("ADDED", "a"), ("ADDED", "b")]
        await kube.maps.create(labelled("c"))
        assert await watch.names(1) == [("ADDED", "c")]


@behaviour("watch.old-version", "A watch from an old version replays what happened since")
async def test_history_is_replayed(kube: Kube) -> None:
    made = await kube.maps.create(labelled("a"))
    await kube.maps.patch("a", MergePatch({"data": {"x": "1"}}))
    await kube.maps.delete("a")
    await kube.maps.create(labelled("a"))
    async with kube.watching(
        kube.maps,
        resource_version=made["metadata"]["resourceVersion"],
        label_selector=SELECT,
    ) as watch:
        types = [event.type for event in await watch.take(3)]
    assert types == ["MODIFIED", "DELETED", "ADDED"]


@behaviour(
    "watch.too-old", "A watch from a version that is gone gets 410 Expired as an ERROR event"
)
async def test_a_version_that_is_gone(kube: Kube) -> None:
    widgets, version = await young_widgets(kube)
    async with kube.watching(widgets, resource_version=version) as watch:
        event = await watch.next()
        assert event.type == ERROR
        error = error_from_object(event.object)
        assert isinstance(error, Gone)
        assert (error.code, error.reason) == (410, "Expired")
        assert f"too old resource version: {version} (" in str(error)
        assert await watch.rest() == []


@behaviour(
    "watch.too-large", "A watch from the future waits silently until it times out or gets an error"
)
async def test_a_version_from_the_future(kube: Kube) -> None:
    future = str(int(await kube.version_now()) + 1_000_000)
    began = time.monotonic()
    with contextlib.suppress(ServerTimeout):
        async with kube.watching(kube.maps, resource_version=future, timeout_seconds=1) as watch:
            await kube.maps.create(labelled("a"))
            told = [error_from_object(e.object) for e in await watch.rest() if e.type == ERROR]
            assert all(map(is_version_too_large, told))
    assert time.monotonic() - began < 60


@behaviour(
    "watch.malformed-version",
    "A watch from an invalid version is refused",
    devcluster="a malformed request is its sender's mistake: 400, where the real server says 500",
)
async def test_a_malformed_version(kube: Kube) -> None:
    watch = kube.maps.watch(WatchOptions(resource_version="nonsense"))
    error = await refused(watch, kube.malformed)
    assert 'resourceVersion: Invalid value: "nonsense"' in str(error)


@behaviour("watch.timeout", "timeoutSeconds ends the watch cleanly")
async def test_a_watch_ends_in_time(kube: Kube) -> None:
    version = await kube.version_now()
    began = time.monotonic()
    async with kube.watching(
        kube.maps, resource_version=version, label_selector=SELECT, timeout_seconds=1
    ) as watch:
        assert await watch.rest() == []
    assert 0.9 <= time.monotonic() - began < 30


@behaviour(
    "watch.enter-leave", "An object that comes to match is ADDED, one that ceases is DELETED"
)
async def test_selectors_make_additions_and_deletions(kube: Kube) -> None:
    await kube.maps.create(config_map("a"))
    version = await kube.version_now()
    async with kube.watching(kube.maps, resource_version=version, label_selector=SELECT) as watch:
        entered = await kube.maps.patch("a", MergePatch({"metadata": {"labels": MINE}}))
        await kube.maps.patch("a", MergePatch({"data": {"x": "1"}}))
        left = await kube.maps.patch("a", MergePatch({"metadata": {"labels": {"mine": "no"}}}))
        await kube.maps.create(labelled("end"))
        events = await watch.take(4)
    assert [event.type for event in events] == ["ADDED", "MODIFIED", "DELETED", "ADDED"]
    assert events[0].object == entered
    # It is shown as it was when it matched last, at the version of the change.
    assert events[2].object["metadata"]["labels"] == MINE
    assert events[2].object["metadata"]["resourceVersion"] == left["metadata"]["resourceVersion"]


@behaviour("watch.field-enter-leave", "The same holds for field selectors")
async def test_field_selectors_make_additions_and_deletions(kube: Kube) -> None:
    await kube.pods.create(pod("p", schedulerName="nobody"))
    version = await kube.version_now()
    status = kube.pods.subresource("status")
    async with kube.watching(
        kube.pods, resource_version=version, field_selector="status.phase=Running"
    ) as watch:
        await status.patch("p", MergePatch({"status": {"phase": "Running"}}))
        await status.patch("p", MergePatch({"status": {"phase": "Failed"}}))
        assert await watch.names(2) == [("ADDED", "p"), ("DELETED", "p")]


@behaviour("watch.single", "One object is watched by a field selector for its name")
async def test_one_object_can_be_watched(kube: Kube) -> None:
    version = await kube.version_now()
    async with kube.watching(
        kube.maps, resource_version=version, field_selector="metadata.name=b"
    ) as watch:
        for name in ("a", "b", "c"):
            await kube.maps.create(config_map(name))
        await kube.maps.delete("b")
        assert await watch.names(2) == [("ADDED", "b"), ("DELETED", "b")]


@behaviour("watch.all-namespaces", "A watch without a namespace sees all of them")
async def test_all_namespaces_are_watched(kube: Kube) -> None:
    version = await kube.version_now()
    everywhere = kube.cluster("v1/configmaps")
    async with kube.watching(
        everywhere, resource_version=version, label_selector=f"own={kube.namespace}"
    ) as watch:
        await kube.maps.create(config_map("a", labels={"own": kube.namespace}))
        event = await watch.next()
    assert event.object["metadata"]["namespace"] == kube.namespace


@behaviour("watch.namespace-only", "A watch of a namespace sees nothing of others")
async def test_other_namespaces_are_not_seen(kube: Kube) -> None:
    version = await kube.version_now()
    async with kube.watching(kube.maps, resource_version=version, label_selector=SELECT) as watch:
        await kube.client.resource("v1/configmaps").create(
            {"metadata": {"generateName": "x-", "namespace": "default", "labels": MINE}}
        )
        await kube.maps.create(labelled("a"))
        assert await watch.names(1) == [("ADDED", "a")]


@behaviour("watch.recreated", "A new object under an old name is DELETED and ADDED, with a new uid")
async def test_a_recreated_object_has_a_new_uid(kube: Kube) -> None:
    version = await kube.version_now()
    async with kube.watching(kube.maps, resource_version=version, label_selector=SELECT) as watch:
        one = await kube.maps.create(labelled("a"))
        await kube.maps.delete("a")
        two = await kube.maps.create(labelled("a"))
        events = await watch.take(3)
    assert [event.type for event in events] == ["ADDED", "DELETED", "ADDED"]
    uids = [event.object["metadata"]["uid"] for event in events]
    assert uids == [one["metadata"]["uid"]] * 2 + [two["metadata"]["uid"]]


@behaviour("watch.kind", "The objects of a watch tell their kind and version")
async def test_events_tell_the_kind(kube: Kube) -> None:
    version = await kube.version_now()
    async with kube.watching(
        kube.deployments, resource_version=version, label_selector=SELECT
    ) as watch:
        made = deployment()
        made["metadata"]["labels"] = MINE
        await kube.deployments.create(made)
        event = await watch.next()
    assert (event.object["apiVersion"], event.object["kind"]) == ("apps/v1", "Deployment")


@behaviour("watch.initial-events", "sendInitialEvents: what there is, then a bookmark that says so")
@pytest.mark.parametrize("version", ["", "0"])
async def test_a_streamed_list_ends_with_a_bookmark(kube: Kube, version: str) -> None:
    await kube.maps.create(labelled("a"))
    await kube.maps.create(labelled("b"))
    now = await kube.version_now()
    await kube.maps.get("a", resource_version=now)
    async with kube.watching(
        kube.maps,
        resource_version=version,
        label_selector=SELECT,
        allow_bookmarks=True,
        send_initial_events=True,
        resource_version_match="NotOlderThan",
    ) as watch:
        assert sorted(await watch.names(2)) == [("ADDED", "a"), ("ADDED", "b")]
        bookmark = await watch.bookmark()
        assert (bookmark.metadata.annotations or {})[INITIAL_EVENTS_END] == "true"
        assert int(bookmark.metadata.resource_version) > 0
        await kube.maps.create(labelled("c"))
        event = await watch.next()
        assert (event.type, event.object["metadata"]["name"]) == ("ADDED", "c")


@behaviour("watch.initial-events-empty", "A streamed list of nothing is the bookmark alone")
async def test_a_streamed_list_may_be_empty(kube: Kube) -> None:
    async with kube.watching(
        kube.maps,
        label_selector="none=such",
        allow_bookmarks=True,
        send_initial_events=True,
        resource_version_match="NotOlderThan",
    ) as watch:
        bookmark = await watch.next()
    assert bookmark.type == BOOKMARK


@behaviour(
    "watch.initial-events-fresh", "A streamed list without a version is as new as its request"
)
async def test_a_streamed_list_is_fresh(kube: Kube) -> None:
    for number in range(5):
        made = await kube.maps.create(labelled(f"m{number}"))
        async with kube.watching(
            kube.maps,
            label_selector=SELECT,
            allow_bookmarks=True,
            send_initial_events=True,
            resource_version_match="NotOlderThan",
        ) as watch:
            await watch.take(number + 1)
            bookmark = await watch.bookmark()
        seen, written = bookmark.metadata.resource_version, made["metadata"]["resourceVersion"]
        assert int(seen) >= int(written)


@behaviour(
    "watch.initial-events-match", "sendInitialEvents needs resourceVersionMatch=NotOlderThan"
)
async def test_initial_events_need_a_match(kube: Kube) -> None:
    watch = kube.maps.watch(WatchOptions(send_initial_events=True))
    error = await refused(watch, 422, "Invalid")
    assert (
        "resourceVersionMatch: Forbidden: sendInitialEvents requires setting"
        " resourceVersionMatch to NotOlderThan"
    ) in str(error)


@behaviour("watch.match-alone", "A watch without initial events takes no resourceVersionMatch")
async def test_a_watch_takes_no_match(kube: Kube) -> None:
    watch = kube.maps.watch(
        WatchOptions(resource_version="1", resource_version_match="NotOlderThan")
    )
    error = await refused(watch, 422, "Invalid")
    assert "resourceVersionMatch is forbidden for watch unless sendInitialEvents" in str(error)


@behaviour("watch.initial-events-list", "sendInitialEvents is refused on lists")
async def test_lists_send_no_initial_events(kube: Kube) -> None:
    answer = await kube.raw.get(
        kube.path("v1/configmaps"),
        sendInitialEvents="true",
        resourceVersionMatch="NotOlderThan",
        resourceVersion="0",
    )
    assert answer.status == 422, answer
    assert "sendInitialEvents is forbidden for list" in answer.json["message"]


@behaviour("watch.initial-events-false", "sendInitialEvents=false begins at the present, silently")
async def test_initial_events_can_be_declined(kube: Kube) -> None:
    await kube.maps.create(labelled("a"))
    async with kube.raw.lines(
        kube.path("v1/configmaps"),
        labelSelector=SELECT,
        sendInitialEvents="false",
        resourceVersionMatch="NotOlderThan",
        timeoutSeconds="10",
    ) as lines:
        await kube.maps.create(labelled("b"))
        event = await anext(lines)
    assert event["object"]["metadata"]["name"] == "b"


@behaviour("watch.bookmark-shape", "A bookmark has the kind and a version, and no name")
async def test_the_shape_of_a_bookmark(kube: Kube) -> None:
    async with kube.raw.lines(
        kube.path("v1/configmaps"),
        labelSelector=SELECT,
        sendInitialEvents="true",
        resourceVersionMatch="NotOlderThan",
        allowWatchBookmarks="true",
        timeoutSeconds="10",
    ) as lines:
        event = await anext(lines)
    assert event["type"] == "BOOKMARK"
    assert (event["object"]["kind"], event["object"]["apiVersion"]) == ("ConfigMap", "v1")
    assert "name" not in event["object"]["metadata"]


@behaviour("watch.bookmark-before-end", "A bookmark comes shortly before a watch times out")
async def test_bookmarks_come_before_the_end(kube: Kube) -> None:
    version = await kube.version_now()
    async with kube.watching(
        kube.maps,
        resource_version=version,
        label_selector=SELECT,
        allow_bookmarks=True,
        timeout_seconds=3,
    ) as watch:
        made = await kube.maps.create(labelled("a"))
        assert await watch.names(1) == [("ADDED", "a")]
        bookmark = await watch.bookmark()
        assert {event.type for event in await watch.rest()} <= {BOOKMARK}
    seen, written = bookmark.metadata.resource_version, made["metadata"]["resourceVersion"]
    assert int(seen) >= int(written)


@behaviour("watch.no-bookmarks", "Without allowWatchBookmarks there are no bookmarks")
async def test_bookmarks_are_asked_for(kube: Kube) -> None:
    version = await kube.version_now()
    async with kube.watching(
        kube.maps, resource_version=version, label_selector=SELECT, timeout_seconds=2
    ) as watch:
        assert await watch.rest() == []


@behaviour("watch.many", "Many watchers of one kind see the same order of events")
async def test_watchers_agree(kube: Kube) -> None:
    version = await kube.version_now()

    async def observe() -> list[tuple[str, str]]:
        async with kube.watching(
            kube.maps, resource_version=version, label_selector=SELECT
        ) as watch:
            return await watch.names(20)

    async def write(offset: int) -> None:
        for number in range(5):
            await kube.maps.create(labelled(f"w{offset}-{number}"))
            await kube.maps.delete(f"w{offset}-{number}")

    async with asyncio.TaskGroup() as group:
        observers = [group.create_task(observe()) for _ in range(4)]
        for offset in range(2):
            group.create_task(write(offset))
    seen = [task.result() for task in observers]
    assert all(one == seen[0] for one in seen)


@behaviour("watch.name-path", "watch=true on one object's path is a get")
async def test_a_single_object_path_is_not_watched(kube: Kube) -> None:
    made = await kube.maps.create(config_map("a"))
    query = {"watch": "1", "timeoutSeconds": "2"}
    answer = await kube.raw.get(kube.path("v1/configmaps", "a"), **query)
    assert answer.json == made


@behaviour(
    "watch.deprecated-path",
    "The old path /watch/ still watches",
    devcluster="404: every client of today asks for `?watch=true`.",
)
async def test_the_old_watch_path(kube: Kube) -> None:
    await kube.maps.create(labelled("a"))
    path = f"/api/v1/watch/namespaces/{kube.namespace}/configmaps"
    if kube.is_dev:
        assert (await kube.raw.get(path)).status == 404
        return
    async with kube.raw.lines(path, labelSelector=SELECT, timeoutSeconds="10") as lines:
        event = await anext(lines)
    assert (event["type"], event["object"]["metadata"]["name"]) == ("ADDED", "a")
