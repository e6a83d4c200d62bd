"""kubeloop on both servers: informers, pages, election, events, finalizers."""

from __future__ import annotations

import asyncio

from kubeloop.aio.tasks import finish
from kubeloop.controller import (
    Controller,
    ElectionConfig,
    EventRecorder,
    Finalizers,
    LeaderElector,
    Request,
    create_or_update,
)
from kubeloop.controller.election.elector import LeaderCallbacks
from kubeloop.controller.election.lease_keeper import ApiLease
from kubeloop.controller.events.correlators import EventSeries
from kubeloop.controller.events.event_types import Reporter
from kubeloop.controller.events.recorder import SERIES_EVENTS, ApiEventSink
from kubeloop.controller.writes import WriteOutcome
from kubeloop.informer import Added, Deleted, ReflectorOptions, SharedInformerFactory, Updated
from kubeloop.objects.list_watch import ListOptions
from kubeloop.objects.meta import JsonObject, PartialObjectMetadata
from kubeloop.objects.patches import MergePatch
from tests.conformance.behaviours import behaviour
from tests.conformance.custom import shared_widgets
from tests.conformance.kube import Kube, eventually
from tests.conformance.manifests import config_map, deployment, widget

MINE = {"mine": "yes"}


def labelled(name: str, **data: str) -> JsonObject:
    return config_map(name, data or None, labels=MINE)


class RecordedNotifications:
    """What an informer reported, in a form to compare."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str]] = []

    def __call__(
        self, notification: Added[JsonObject] | Updated[JsonObject] | Deleted[JsonObject]
    ) -> None:
        word = type(notification).__name__
        if isinstance(notification, Added) and notification.initial:
            word = "Initial"
        self.seen.append((word, notification.key.rpartition("/")[2]))

    async def until(self, count: int) -> list[tuple[str, str]]:
        async def enough() -> bool:
            return len(self.seen) >= count

        await eventually(enough)
        return self.seen


async def follow(kube: Kube, options: ReflectorOptions) -> None:
    """An informer sees what there is, and every change, and its store is the server's state."""
    for name in ("a", "b"):
        await kube.maps.create(labelled(name))
    recorded = RecordedNotifications()
    factory = SharedInformerFactory(kube.client, namespace=kube.namespace, options=options)
    informer = factory.informer("v1/configmaps", dict, label_selector="mine=yes")
    informer.add_handler(on_event=recorded)
    async with factory.running():
        await factory.wait_for_sync(timeout=20)
        assert sorted(await recorded.until(2)) == [("Initial", "a"), ("Initial", "b")]
        await kube.maps.create(labelled("c"))
        await kube.maps.patch("a", MergePatch({"data": {"x": "1"}}))
        await kube.maps.delete("b")
        seen = await recorded.until(5)
        assert seen[2:] == [("Added", "c"), ("Updated", "a"), ("Deleted", "b")]
        found = informer.lister.namespace(kube.namespace).list()
        assert sorted(item["metadata"]["name"] for item in found) == ["a", "c"]
        assert informer.lister.get(kube.namespace, "a")["data"] == {"x": "1"}


@behaviour(
    "kubeloop.informer-watch-list", "An informer syncs by a streamed list and follows changes"
)
async def test_informers_stream(kube: Kube) -> None:
    await follow(kube, ReflectorOptions(watch_list=True))


@behaviour("kubeloop.informer-list", "An informer syncs by pages and follows changes")
async def test_informers_list(kube: Kube) -> None:
    await follow(kube, ReflectorOptions(watch_list=False, page_size=1))


@behaviour("kubeloop.informer-check", "A streamed list is what a list of its version is")
async def test_streams_and_lists_agree(kube: Kube) -> None:
    for number in range(20):
        await kube.maps.create(labelled(f"m{number}"))
    factory = SharedInformerFactory(
        kube.client, namespace=kube.namespace, options=ReflectorOptions(self_check=True)
    )
    informer = factory.informer("v1/configmaps", dict, label_selector="mine=yes")
    async with factory.running():
        await factory.wait_for_sync(timeout=20)
        assert len(informer.store.list()) == 20


@behaviour("kubeloop.informer-metadata", "An informer of metadata alone works for any kind")
async def test_informers_of_metadata(kube: Kube) -> None:
    widgets = await shared_widgets(kube)
    await widgets.create(widget(widgets.gvr.group))
    factory = SharedInformerFactory(kube.client, namespace=kube.namespace)
    informer = factory.informer(widgets.gvr, PartialObjectMetadata)
    async with factory.running():
        await factory.wait_for_sync(timeout=20)
        (found,) = informer.store.list()
        assert found.metadata.name == "w"


@behaviour(
    "kubeloop.informer-compaction", "An informer that lists again after a compaction misses nothing"
)
async def test_an_informer_that_lists_again_after_a_compaction_misses_nothing(kube: Kube) -> None:
    recorded = RecordedNotifications()
    factory = SharedInformerFactory(kube.client, namespace=kube.namespace)
    informer = factory.informer("v1/configmaps", dict, label_selector="mine=yes")
    informer.add_handler(on_event=recorded)
    async with factory.running():
        await factory.wait_for_sync(timeout=20)
        await kube.maps.create(labelled("a"))
        await recorded.until(1)
        await asyncio.to_thread(kube.server.compact)
        await kube.maps.create(labelled("b"))
        await recorded.until(2)
        informer.relist("a test asks for it")
        await kube.maps.create(labelled("c"))

        async def complete() -> bool:
            names = {item["metadata"]["name"] for item in informer.store.list()}
            return names == {"a", "b", "c"}

        await eventually(complete)


@behaviour("kubeloop.pager", "The pager reads a long list page by page, as one snapshot")
async def test_the_pager(kube: Kube) -> None:
    made = [f"m{number:02}" for number in range(12)]
    for name in made:
        await kube.maps.create(labelled(name))
    pager = kube.maps.items(selector="mine=yes", page_size=5)
    pages = [page async for page in pager.pages()]
    assert [len(page.items) for page in pages] == [5, 5, 2]
    assert [item["metadata"]["name"] for page in pages for item in page.items] == made
    assert {page.resource_version for page in pages} == {pager.resource_version}


@behaviour("kubeloop.watch-resume", "A watch resumes where a bookmark left off")
async def test_watches_resume(kube: Kube) -> None:
    await kube.maps.create(labelled("a"))
    async with kube.watching(
        kube.maps,
        label_selector="mine=yes",
        allow_bookmarks=True,
        send_initial_events=True,
        resource_version_match="NotOlderThan",
    ) as watch:
        assert await watch.names(1) == [("ADDED", "a")]
        bookmark = await watch.bookmark()
    await kube.maps.create(labelled("b"))
    async with kube.watching(
        kube.maps,
        label_selector="mine=yes",
        resource_version=bookmark.metadata.resource_version,
    ) as watch:
        assert await watch.names(1) == [("ADDED", "b")]


@behaviour(
    "kubeloop.election", "Of two electors one leads; when it goes the other takes over at once"
)
async def test_leader_election(kube: Kube) -> None:
    leading: list[str] = []

    def elector(identity: str) -> asyncio.Task[None]:
        config = ElectionConfig(
            namespace=kube.namespace,
            name="leader",
            identity=identity,
            lease_duration=15,
            renew_deadline=10.0,
            retry_period=0.2,
        )

        async def lead() -> None:
            leading.append(identity)
            await asyncio.Event().wait()

        callbacks = LeaderCallbacks(on_started=lead, on_stopped=lambda: None)
        candidate = LeaderElector(config=config, lease=ApiLease(kube.client, config))
        return asyncio.create_task(candidate.run(callbacks))

    async def led_by(count: int) -> bool:
        async def enough() -> bool:
            return len(leading) == count

        await eventually(enough)
        return True

    one = elector("one")
    await led_by(1)
    two = elector("two")
    lease = await kube.of("coordination.k8s.io/v1/leases").get("leader")
    assert lease["spec"]["holderIdentity"] == "one"
    await finish([one])
    await led_by(2)
    lease = await kube.of("coordination.k8s.io/v1/leases").get("leader")
    assert (lease["spec"]["holderIdentity"], leading) == ("two", ["one", "two"])
    assert lease["spec"]["leaseTransitions"] >= 1
    await finish([two])


@behaviour("kubeloop.events", "Recorded events reach the server, repeated ones are counted")
async def test_the_event_recorder(kube: Kube) -> None:
    about = await kube.maps.create(config_map("a"))
    recorder = EventRecorder(Reporter("suite"), ApiEventSink(kube.client))
    task = asyncio.create_task(recorder.run())
    for _ in range(3):
        recorder.warning(about, "Tested", "again and again")
    try:

        async def counted() -> bool:
            found = [e async for e in kube.of("v1/events").items()]
            return [(e["reason"], e["count"], e["type"]) for e in found] == [
                ("Tested", 3, "Warning")
            ]

        await eventually(counted)
    finally:
        await finish([task])


@behaviour("kubeloop.event-series", "Events of the newer API reach the server too")
async def test_the_event_series(kube: Kube) -> None:
    about = await kube.maps.create(config_map("a"))
    reporter = Reporter("example.com/suite", "suite-1")
    recorder = EventRecorder(
        reporter, ApiEventSink(kube.client, SERIES_EVENTS), correlator=EventSeries(reporter)
    )
    task = asyncio.create_task(recorder.run())
    recorder.normal(about, "Tested", "hello", action="Test")
    try:

        async def seen() -> bool:
            found = [e async for e in kube.of(SERIES_EVENTS).items()]
            return [(e["reason"], e["note"]) for e in found] == [("Tested", "hello")]

        await eventually(seen)
    finally:
        await finish([task])


@behaviour("kubeloop.controller", "A controller reconciles what its informer names")
async def test_a_controller(kube: Kube) -> None:
    factory = SharedInformerFactory(kube.client, namespace=kube.namespace)
    informer = factory.informer("v1/configmaps", dict, label_selector="mine=yes")

    async def reconcile(request: Request) -> None:
        found = informer.lister.find(*request)
        if found is not None and "done" not in found.get("data", {}):
            await kube.maps.patch(request.name, MergePatch({"data": {"done": "yes"}}))

    controller = Controller("suite", reconcile)
    controller.watch(informer)
    async with factory.running():
        task = asyncio.create_task(controller.run())
        try:
            await kube.maps.create(labelled("a"))

            async def done() -> bool:
                return (await kube.maps.get("a")).get("data") == {"done": "yes"}

            await eventually(done)
        finally:
            await finish([task])


@behaviour("kubeloop.finalizers", "A finalizer holds an object until its work is done")
async def test_finalizers(kube: Kube) -> None:
    ended: list[str] = []
    finalizers = Finalizers[JsonObject](
        {"example.com/work": lambda obj: ended.append(obj["metadata"]["name"])}
    )
    made = await kube.maps.create(config_map("a"))
    result = await finalizers.finalize(made)
    assert result.patch is not None
    await kube.maps.patch("a", result.patch)
    left = await kube.maps.delete("a")
    assert left is not None
    result = await finalizers.finalize(left)
    assert result.patch is not None
    await kube.maps.patch("a", result.patch)
    assert ended == ["a"]
    page = await kube.maps.list(ListOptions(field_selector="metadata.name=a"))
    assert page.items == []


@behaviour("kubeloop.create-or-update", "An object is created, changed or left unchanged")
async def test_create_or_update(kube: Kube) -> None:
    def wanted(value: str):
        def mutate(obj: JsonObject) -> None:
            obj["data"] = {"x": value}

        return mutate

    obj = config_map("a", namespace=kube.namespace)
    outcomes = []
    for value in ("1", "1", "2"):
        _, outcome = await create_or_update(kube.maps, obj, wanted(value))
        outcomes.append(outcome)
    assert outcomes == [WriteOutcome.CREATED, WriteOutcome.UNCHANGED, WriteOutcome.UPDATED]


@behaviour("kubeloop.typed", "Objects of a kind can be had as Structs, metadata alone as such")
async def test_typed_objects(kube: Kube) -> None:
    await kube.deployments.create(deployment())
    typed = kube.client.resource(
        "apps/v1/deployments", PartialObjectMetadata, namespace=kube.namespace
    )
    found = await typed.get("web")
    assert (found.metadata.name, found.metadata.generation) == ("web", 1)
