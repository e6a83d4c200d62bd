"""The factory: sharing, options, life."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

import msgspec
import pytest
from tests.informer.support import EXACT, Recorder, RecordingMetrics, now, settle, versions

from kubeloop.informer import (
    InformerNames,
    InformerStopped,
    NotSynced,
    Selection,
    SharedInformerFactory,
    drop_managed_fields,
)
from kubeloop.informer.reflector.source import ListFailed
from kubeloop.objects.gvk import GroupVersionKind, GroupVersionResource
from kubeloop.objects.lazy import LazyObject
from kubeloop.objects.meta import STRUCT_ACCESS, PartialObjectMetadata, SlimMeta
from kubeloop.objects.selectors import LabelSelector
from kubeloop.testing.fake_source import FakeSource

pytestmark = pytest.mark.virtual_time

PODS = GroupVersionResource("", "v1", "pods")


class FakeClient:
    """Hands out one fake source for each resource, and notes how it was asked."""

    def __init__(self) -> None:
        self.sources: dict[GroupVersionResource, FakeSource[Any]] = {}
        self.asked: list[tuple[str, type, str]] = []

    def source(self, resource: str) -> FakeSource[Any]:
        return self.sources.setdefault(GroupVersionResource.parse(resource), FakeSource())

    def resource(self, resource, kind, *, namespace=""):
        self.asked.append((str(resource), kind, namespace))
        return self.source(str(resource))


def make_factory(client=None, **options):
    options.setdefault("collector", False)
    options.setdefault("options", EXACT)
    return SharedInformerFactory(client or FakeClient(), **options)


@pytest.mark.spec("F1", "F9")
def test_repeated_calls_return_the_same_informer():
    factory = make_factory()
    pods = factory.informer("v1/pods", dict)
    assert factory.informer(PODS, dict) is pods
    assert factory.informer("apps/v1/deployments", dict) is not pods


@pytest.mark.spec("F9")
def test_equal_slices_share_an_informer_and_different_ones_do_not():
    client = FakeClient()
    factory = make_factory(client)

    class Slim(msgspec.Struct):
        metadata: SlimMeta

    def transform(obj):
        return obj

    web = factory.informer("v1/pods", dict, label_selector="app=web,tier=a", namespace="ns")
    same = factory.informer(
        "v1/pods", dict, label_selector={"tier": "a", "app": "web"}, namespace="ns"
    )
    assert same is web
    others = [
        factory.informer("v1/pods", dict, label_selector="app=web", namespace="ns"),
        factory.informer("v1/pods", dict, label_selector="app=web,tier=a"),
        factory.informer("v1/pods", dict, label_selector="app=web,tier=a", namespace="other"),
        factory.informer("v1/pods", Slim, label_selector="app=web,tier=a", namespace="ns"),
        factory.informer(
            "v1/pods", dict, label_selector="app=web,tier=a", namespace="ns", transform=transform
        ),
        factory.informer(
            *("v1/pods", dict),
            label_selector="app=web,tier=a",
            namespace="ns",
            field_selector="spec.nodeName=n1",
        ),
    ]
    assert len({id(informer) for informer in [web, *others]}) == 7
    assert len({informer.name for informer in [web, *others]}) == 7
    assert len(client.asked) == 7


@pytest.mark.spec("F9")
async def test_the_last_release_stops_the_watch():
    client = FakeClient()
    source = client.source("v1/pods")
    factory = make_factory(client)
    first = factory.informer("v1/pods", dict)
    second = factory.informer("v1/pods", dict)
    async with factory.running():
        await factory.wait_for_sync()
        await settle()
        await factory.release(first)
        assert first.state.value == "started"
        assert len(source.open_streams) == 1
        await factory.release(second)
        assert first.state.value == "stopped"
        assert source.open_streams == []
        await factory.release(second)
        anew = factory.informer("v1/pods", dict)
        assert anew is not first
        factory.start()
        assert await anew.wait_synced()


@pytest.mark.spec("F2")
async def test_start_starts_what_was_not_started_and_may_be_repeated():
    client = FakeClient()
    factory = make_factory(client)
    pods = factory.informer("v1/pods", dict)
    async with factory.running():
        await settle()
        nodes = factory.informer("v1/nodes", dict)
        await settle()
        assert nodes.state.value == "new"
        factory.start()
        factory.start()
        await settle()
        assert pods.has_synced
        assert nodes.has_synced
        assert len(client.source("v1/pods").lists) == 1
    factory.start()
    await settle()
    assert len(client.source("v1/pods").lists) == 1


@pytest.mark.spec("F2")
async def test_after_the_shutdown_nothing_starts():
    client = FakeClient()
    factory = make_factory(client)
    await factory.shutdown()
    factory.informer("v1/pods", dict)
    factory.start()
    await settle()
    assert client.source("v1/pods").lists == []


@pytest.mark.spec("F3", "I15")
async def test_wait_for_sync_names_started_informers_that_did_not(caplog):
    client = FakeClient()
    client.source("v1/nodes").stall_lists()
    factory = make_factory(client)
    factory.informer("v1/pods", dict)
    factory.informer("v1/nodes", dict)
    async with factory.running():
        factory.informer("v1/secrets", dict)  # not started, so nobody waits for it
        with pytest.raises(NotSynced, match=r"not synced: v1/nodes \(timed out after 60 s\)") as e:
            await factory.wait_for_sync(timeout=60)
        assert e.value.result.synced == {"v1/pods": True, "v1/nodes": False}
        assert now() == 60
        client.source("v1/nodes").stall_lists(stall=False)
        result = await factory.wait_for_sync(timeout=60)
        assert result.synced == {"v1/pods": True, "v1/nodes": True}
    assert "v1/secrets was not started: call start() first" in caplog.text


@pytest.mark.parametrize("watch_list", [True, False])
async def test_a_sync_timeout_names_its_cause(watch_list):
    client = FakeClient()
    client.source("v1/pods").refuse_connections()
    options = dataclasses.replace(EXACT, watch_list=watch_list)
    factory = make_factory(client, options=options)
    factory.informer("v1/pods", dict)
    async with factory.running():
        with pytest.raises(NotSynced, match=r"v1/pods \(timed out after 60 s\); .*refused") as e:
            await factory.wait_for_sync(timeout=60)
    assert "refused" in str(e.value.result.troubles["v1/pods"])


@pytest.mark.spec("F3")
async def test_waiters_learn_that_the_informers_stopped():
    client = FakeClient()
    client.source("v1/pods").stall_lists()
    factory = make_factory(client)
    factory.informer("v1/pods", dict)
    async with factory.running():
        waiting = asyncio.create_task(factory.wait_for_sync())
        await settle()
    with pytest.raises(NotSynced, match="stopped before the sync"):
        await waiting


@pytest.mark.spec("F4")
async def test_shutdown_waits_for_all_runners_and_is_repeatable():
    client = FakeClient()
    client.source("v1/pods").create("a")
    factory = make_factory(client)
    pods = factory.informer("v1/pods", dict)

    async def slow(obj):
        await asyncio.sleep(10)

    pods.add_handler(on_add=slow)
    factory.start()
    await asyncio.sleep(1)
    shutdowns = [asyncio.create_task(factory.shutdown()) for _ in range(2)]
    await asyncio.sleep(1)
    assert not any(task.done() for task in shutdowns)
    assert pods.state.value == "started"
    factory.stop()
    await asyncio.gather(*shutdowns)
    assert now() == 10
    assert pods.state.value == "stopped"
    await factory.shutdown()


@pytest.mark.spec("F5")
async def test_options_reach_lists_and_watches():
    client = FakeClient()
    factory = make_factory(client, namespace="team", resync=30.0)
    pods = factory.informer(
        "v1/pods", dict, label_selector="app=web", field_selector="spec.nodeName=n1"
    )
    nodes = factory.informer("v1/nodes", dict, namespace="", resync=90.0)
    assert pods.resync_check_period == 30
    assert nodes.resync_check_period == 90
    assert client.asked == [("v1/pods", dict, "team"), ("v1/nodes", dict, "")]
    async with factory.running():
        await settle()
        requests: list[Any] = [*client.source("v1/pods").lists, *client.source("v1/pods").watches]
        for request in requests:
            assert request.label_selector == "app=web"
            assert request.field_selector == "spec.nodeName=n1"


@pytest.mark.spec("F5")
async def test_a_tweak_changes_selectors_but_not_paging_or_versions():
    client = FakeClient()

    def tweak(selection: Selection) -> Selection:
        parts = filter(None, (selection.label_selector, "tenant=a"))
        return Selection(",".join(parts), selection.field_selector)

    assert set(Selection.__slots__) == {"label_selector", "field_selector"}
    factory = make_factory(client, tweak=tweak)
    factory.informer("v1/pods", dict, label_selector="app=web")
    async with factory.running():
        await settle()
        (listed,), (watched,) = client.source("v1/pods").lists, client.source("v1/pods").watches
        assert listed.label_selector == watched.label_selector == "app=web,tenant=a"
        assert (listed.resource_version, listed.limit) == ("0", 500)


@pytest.mark.spec("F5")
async def test_a_transform_for_all_and_one_for_a_type():
    client = FakeClient()
    client.source("v1/pods").create("a")
    client.source("v1/nodes").create("n")
    factory = make_factory(client, transform=lambda obj: obj | {"by": "all"})
    pods = factory.informer("v1/pods", dict)
    nodes = factory.informer("v1/nodes", dict, transform=lambda obj: obj | {"by": "own"})
    async with factory.running():
        await factory.wait_for_sync()
        assert pods.store.list()[0]["by"] == "all"
        assert nodes.store.list()[0]["by"] == "own"


@pytest.mark.spec("F5")
async def test_managed_fields_are_dropped_by_default():
    client = FakeClient()
    pod = client.source("v1/pods").build("a")
    pod["metadata"]["managedFields"] = [{"manager": "kubectl"}]
    client.source("v1/pods").put(pod)
    factory = make_factory(client)
    pods = factory.informer("v1/pods", dict)
    kept = make_factory(client, transform=None).informer("v1/pods", dict)
    async with factory.running(), kept.running():
        await settle()
        assert "managedFields" not in pods.store.list()[0]["metadata"]
        assert "managedFields" in kept.store.list()[0]["metadata"]
    assert drop_managed_fields("anything else") == "anything else"


class TrimmingSource(FakeSource[Any]):
    """A source that can leave managedFields out itself, and notes that it was asked to."""

    trimmed = False

    def without_managed_fields(self) -> TrimmingSource:
        self.trimmed = True
        return self


@pytest.mark.parametrize(
    ("kind", "transform", "asked"),
    [
        (dict, drop_managed_fields, True),
        (dict, None, False),
        (dict, lambda obj: obj, False),
        (LazyObject, drop_managed_fields, False),
    ],
)
def test_source_that_can_leave_managed_fields_out_is_asked_to(kind, transform, asked):
    client = FakeClient()
    source = client.sources[PODS] = TrimmingSource()
    make_factory(client, transform=transform).informer("v1/pods", kind)
    assert source.trimmed is asked


@pytest.mark.spec("F5")
async def test_a_factorys_name_is_unique_until_its_shutdown():
    names = InformerNames()
    metrics_of: dict[Any, Any] = {}

    class Provider:
        def informer(self, name):
            return metrics_of.setdefault(name, RecordingMetrics())

    first = make_factory(name="operator", names=names, metrics=Provider())
    with pytest.raises(ValueError, match="'operator' is in use"):
        make_factory(name="operator", names=names)
    with pytest.raises(ValueError, match="needs a name"):
        make_factory(names=names)
    first.informer("v1/pods", dict)
    async with first.running():
        await settle()
    assert list(metrics_of) == ["operator/v1/pods"]
    assert metrics_of["operator/v1/pods"].values("listed", "items") == [0]
    make_factory(name="operator", names=names)


@pytest.mark.spec("F6")
async def test_leaving_a_selector_is_a_delete_and_returning_an_add():
    client = FakeClient()
    source = client.source("v1/pods")
    source.create("a", labels={"app": "web"})
    source.create("b", labels={"app": "db"})
    factory = make_factory(client)
    pods = factory.informer("v1/pods", dict, label_selector="app=web")
    recorder = Recorder()
    pods.add_handler(on_event=recorder)
    async with factory.running():
        await settle()
        source.update("a", labels={"app": "db"})
        source.update("b", labels={"app": "web"})
        source.update("a", n=1)
        source.update("a", labels={"app": "web"})
        await settle()
        assert recorder.brief == [
            ("initial", "a", "1"),
            ("delete", "a", "3"),
            ("add", "b", "4"),
            ("add", "a", "6"),
        ]
        assert versions(pods.store) == {"a": "6", "b": "4"}


@pytest.mark.spec("F7")
async def test_metadata_informers_request_partial_objects():
    client = FakeClient()
    decode = msgspec.json.Decoder(PartialObjectMetadata).decode
    source = client.sources[PODS] = FakeSource(
        represent=lambda obj: decode(msgspec.json.encode(obj)), access=STRUCT_ACCESS
    )
    source.create("a", spec={"big": "x" * 1000}, labels={"app": "web"})
    factory = make_factory(client)
    pods = factory.informer("v1/pods", metadata_only=True)
    assert client.asked == [("v1/pods", PartialObjectMetadata, "")]
    assert factory.informer("v1/pods", dict) is not pods
    async with factory.running():
        await settle()
        (pod,) = pods.lister.list("app=web")
        assert (pod.api_version, pod.kind, pod.metadata.name) == ("v1", "Pod", "a")
        assert not hasattr(pod, "spec")


@pytest.mark.spec("F8", "R26")
async def test_kinds_are_checked_only_if_one_is_expected():
    client = FakeClient()
    source = client.source("v1/pods")
    factory = make_factory(client)
    loose = factory.informer("v1/pods", dict)
    strict = factory.informer(
        "v1/pods", dict, expect=GroupVersionKind("", "v1", "Pod"), namespace="x"
    )
    async with factory.running():
        await settle()
        source.send(
            "ADDED",
            {
                "apiVersion": "v1",
                "kind": "Service",
                "metadata": {"name": "svc", "resourceVersion": "5"},
            },
        )
        await settle()
        assert loose.store.keys() == ["svc"]
        assert strict.store.keys() == []


def test_without_a_kind_objects_are_lazy():
    client = FakeClient()
    make_factory(client).informer("v1/pods")
    assert client.asked == [("v1/pods", LazyObject, "")]


def test_a_selector_for_nothing_is_refused():
    with pytest.raises(ValueError, match="matches nothing"):
        make_factory().informer("v1/pods", dict, label_selector=LabelSelector.nothing())


async def test_block_that_fails_stops_everything_and_raises_own_error():
    client = FakeClient()
    factory = make_factory(client)
    pods = factory.informer("v1/pods", dict)

    async def fail_inside():
        async with factory.running():
            await factory.wait_for_sync()
            raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        await fail_inside()
    assert pods.state.value == "stopped"
    assert client.source("v1/pods").open_streams == []


async def test_informer_that_fails_for_good_ends_block_with_error():
    client = FakeClient()
    client.source("v1/pods").fail_lists(ZeroDivisionError("a defect"))
    factory = make_factory(client)
    factory.informer("v1/pods", dict)
    nodes = factory.informer("v1/nodes", dict)
    with pytest.raises(ZeroDivisionError):
        async with factory.running():
            await asyncio.sleep(1000)
    assert now() == 0
    assert nodes.state.value == "stopped"


async def test_a_timeout_of_the_block_itself_passes_through():
    factory = make_factory()
    factory.informer("v1/pods", dict)
    with pytest.raises(TimeoutError):
        async with factory.running(), asyncio.timeout(30):
            await asyncio.sleep(1000)


async def test_a_factory_stopped_at_once_releases_its_waiters():
    factory = make_factory()
    pods = factory.informer("v1/pods", dict)
    factory.start()
    factory.stop()
    assert not await asyncio.wait_for(pods.wait_synced(), 1)
    await factory.shutdown()
    assert pods.state.value == "stopped"
    assert not await pods.wait_synced()
    with pytest.raises(InformerStopped):
        pods.add_handler(on_add=print)


async def test_list_errors_reach_the_error_handler_of_the_informer():
    client = FakeClient()
    client.source("v1/pods").refuse_connections()
    errors: list[Any] = []
    factory = make_factory(client)
    factory.informer("v1/pods", dict).set_error_handler(errors.append)
    async with factory.running():
        await asyncio.sleep(2)
    assert [type(error) for error in errors] == [ListFailed] * 2
    assert "v1/pods" in str(errors[0])
