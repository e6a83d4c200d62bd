"""The short form: a Struct and a function are an operator, and every part of it can be used alone."""

from __future__ import annotations

import asyncio
import functools
from typing import Any

import msgspec
import pytest

from kubeloop.client import Client
from kubeloop.controller import (
    Caches,
    EventRecorder,
    Group,
    Manager,
    Result,
    TerminalError,
)
from kubeloop.controller.predicates import by_kind
from kubeloop.crd import custom_resource_definition
from kubeloop.informer import SharedInformerFactory
from kubeloop.informer.sync import NotSynced
from kubeloop.objects.conditions import Condition
from kubeloop.objects.meta import JsonObject, ObjectMeta, PartialObjectMetadata
from kubeloop.objects.owners import OwnershipError
from kubeloop.objects.patches import MergePatch
from kubeloop.operator import Context, Operator, make_manager, running
from kubeloop.testing.fake_client import FakeClient
from kubeloop.testing.fake_errors import api_error

pytestmark = pytest.mark.virtual_time
PATH = "example.com/v1/sites"


class Spec(msgspec.Struct, frozen=True):
    text: str = ""


class Status(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    page: str = ""
    observed_generation: int = 0
    conditions: tuple[Condition, ...] = ()


class Site(msgspec.Struct, frozen=True):
    metadata: ObjectMeta
    spec: Spec = Spec()
    status: Status = Status()


DEFINITION = custom_resource_definition(Site, PATH)


def make_operator(**options: Any) -> Operator[Site]:
    options = {"definition": DEFINITION, "owns": ["v1/configmaps"]} | options
    return Operator(Site, PATH, **options)


def site(text: str = "hello", **metadata: Any) -> JsonObject:
    meta = {"name": "a", **metadata}
    return {
        "apiVersion": "example.com/v1",
        "kind": "Site",
        "metadata": meta,
        "spec": {"text": text},
    }


def page(text: str) -> JsonObject:
    metadata = {"name": "a-page"}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"t": text}}


def publishing(operator: Operator[Site]) -> list[str]:
    """Give the operator a function that publishes; returns the texts that it saw."""
    seen: list[str] = []

    @operator.reconcile
    async def publish(found: Site, ctx: Context[Site]) -> None:
        seen.append(found.spec.text)
        await ctx.apply(page(found.spec.text))
        name = found.metadata.name
        await ctx.report(Status(page=name), Condition("Ready", "True", "Published"))

    return seen


async def test_it_creates_its_definition_publishes_and_reports() -> None:
    client, operator = FakeClient(), make_operator()
    publishing(operator)
    async with running(client, operator):
        await asyncio.sleep(1)
        assert client.find("apiextensions.k8s.io/v1/customresourcedefinitions", "sites.example.com")
        await client.resource(PATH, namespace="default").create(site())
        await asyncio.sleep(1)
    made = client.find("v1/configmaps", "a-page")
    assert made is not None
    assert made["data"] == {"t": "hello"}
    (owner,) = made["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["controller"]) == ("Site", "a", True)
    found = client.find(PATH, "a")
    assert found is not None
    status = found["status"]
    assert (status["page"], status["observedGeneration"]) == ("a", 1)
    (condition,) = status["conditions"]
    assert (condition["type"], condition["status"]) == ("Ready", "True")
    assert condition["observedGeneration"] == 1
    assert condition["lastTransitionTime"]


async def test_running_begins_when_the_definition_is_served_and_cached() -> None:
    client, operator = FakeClient(), make_operator()
    seen = publishing(operator)
    async with running(client, operator):
        await client.resource(PATH, namespace="default").create(site())
        await asyncio.sleep(1)
    assert seen


async def test_running_fails_at_its_start_with_what_is_missing() -> None:
    client, operator = FakeClient(DEFINITION), make_operator(definition=None)
    publishing(operator)
    client.source(PATH).refuse_connections()
    with pytest.raises(NotSynced, match=r"example\.com/v1/sites"):
        async with running(client, operator):
            pytest.fail("it began without its cache")


async def test_a_status_is_written_once_and_what_it_leaves_out_is_removed() -> None:
    client, operator = FakeClient(DEFINITION, site()), make_operator()

    @operator.reconcile
    async def publish(found: Site, ctx: Context[Site]) -> None:
        await ctx.apply(page(found.spec.text))
        await ctx.report(Status(page="a" if found.spec.text else ""))

    async with running(client, operator):
        await asyncio.sleep(10)
        status = [write for write in client.writes if write.endswith("/status")]
        assert len(status) == 1, "the reconcile for the ConfigMap's own event waits for the cache"
        await client.resource(PATH, namespace="default").patch("a", MergePatch({"spec": None}))
        await asyncio.sleep(10)
    found = client.find(PATH, "a")
    assert found is not None
    assert "page" not in found["status"]


async def test_what_it_owns_is_repaired_and_seen_in_the_cache() -> None:
    client, operator = FakeClient(DEFINITION, site()), make_operator()
    seen = publishing(operator)
    async with running(client, operator):
        await asyncio.sleep(1)
        client.remove("v1/configmaps", "a-page")
        await asyncio.sleep(1)
        assert client.find("v1/configmaps", "a-page") is not None
        count = len(seen)
        client.put(page("not owned") | {"metadata": {"name": "other"}})
        await asyncio.sleep(1)
        assert len(seen) == count, "an object without our owner is nobody's"


async def test_the_cache_of_an_owned_kind_can_be_read() -> None:
    client, operator = FakeClient(DEFINITION, site()), make_operator()
    pages: list[int] = []

    @operator.reconcile
    async def publish(found: Site, ctx: Context[Site]) -> None:
        await ctx.apply(page(found.spec.text))
        pages.append(len(ctx.lister("v1/configmaps").list()))
        with pytest.raises(KeyError, match="name it in owns="):
            ctx.lister("v1/secrets")

    async with running(client, operator):
        await asyncio.sleep(1)
    assert pages[-1] == 1


async def test_a_finalizer_is_added_run_and_removed() -> None:
    client, operator = FakeClient(DEFINITION, site()), make_operator()
    publishing(operator)
    gone: list[str] = []

    @operator.finalizer("example.com/sites")
    async def take_down(found: Site, ctx: Context[Site]) -> None:
        gone.append(found.metadata.name)
        ctx.event("TakenDown", "no longer published")

    async with running(client, operator):
        await asyncio.sleep(1)
        found = client.find(PATH, "a")
        assert found is not None
        assert found["metadata"]["finalizers"] == ["example.com/sites"]
        client.remove(PATH, "a")
        await asyncio.sleep(10)
        assert client.find(PATH, "a") is None
    assert gone == ["a"]
    events = client.source("v1/events").objects.values()
    assert [event["reason"] for event in events] == ["TakenDown"]


async def test_an_object_in_deletion_is_not_reconciled_without_a_finalizer_of_ours() -> None:
    client, operator = FakeClient(DEFINITION, site(finalizers=["x.io/other"])), make_operator()
    seen = publishing(operator)
    client.remove(PATH, "a")
    async with running(client, operator):
        await asyncio.sleep(10)
    assert seen == []


async def test_errors_are_retried_terminal_ones_are_not_and_results_are_followed() -> None:
    client = FakeClient(DEFINITION, site("again"), site("never", name="b"), site("later", name="c"))
    operator, calls = make_operator(), []

    @operator.reconcile
    async def decide(found: Site, ctx: Context[Site]) -> Result | None:
        calls.append(found.spec.text)
        ctx.warning("Tried", found.spec.text)
        if found.spec.text == "again" and calls.count("again") < 3:
            raise RuntimeError("not yet")
        if found.spec.text == "never":
            raise TerminalError("no")
        return Result(requeue_after=30) if found.spec.text == "later" else None

    async with running(client, operator):
        await asyncio.sleep(95)
    assert calls.count("again") == 3
    assert calls.count("never") == 1
    assert calls.count("later") == 4
    assert {event["type"] for event in client.source("v1/events").objects.values()} == {"Warning"}


async def test_an_owner_in_another_namespace_is_refused_before_anything_is_written() -> None:
    client, operator = FakeClient(DEFINITION, site()), make_operator()
    refusals: list[str] = []

    @operator.reconcile
    async def publish(found: Site, ctx: Context[Site]) -> None:
        elsewhere = page("x") | {"metadata": {"name": "p", "namespace": "other"}}
        try:
            await ctx.apply(elsewhere)
        except OwnershipError as error:
            refusals.append(str(error))
        await ctx.apply(elsewhere, owned=False)

    async with running(client, operator):
        await asyncio.sleep(1)
    assert "cannot own an object in 'other'" in refusals[0]
    assert client.find("v1/configmaps", "p", namespace="other") is not None


async def test_apply_writes_only_into_metadata_of_its_own() -> None:
    client, operator = FakeClient(DEFINITION, site()), make_operator()
    names = {"name": "p"}
    data = {"shared": names}
    whole = PartialObjectMetadata("v1", "Secret", ObjectMeta(name="s"))

    @operator.reconcile
    async def publish(_found: Site, ctx: Context[Site]) -> None:
        content = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": names, "data": data}
        await ctx.apply(content)
        await ctx.apply(whole)

    async with running(client, operator):
        await asyncio.sleep(1)
    made = client.find("v1/configmaps", "p")
    assert made is not None
    assert made["data"] == {"shared": {"name": "p"}}
    assert made["metadata"]["ownerReferences"]
    assert names == {"name": "p"}
    assert client.find("v1/secrets", "s") is not None
    assert whole.metadata == ObjectMeta(name="s")


async def test_apply_gives_cluster_scoped_objects_no_namespace() -> None:
    client, operator = FakeClient(DEFINITION, site()), make_operator()
    refusals: list[str] = []

    @operator.reconcile
    async def publish(_found: Site, ctx: Context[Site]) -> None:
        room = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "room"}}
        with pytest.raises(OwnershipError) as caught:
            await ctx.apply(room)
        refusals.append(str(caught.value))
        await ctx.apply(room, owned=False)

    async with running(client, operator):
        await asyncio.sleep(1)
    assert client.find("v1/namespaces", "room", namespace="") is not None
    assert "a cluster-scoped object cannot have an owner in namespace 'default'" in refusals[0]


async def test_an_object_that_does_not_fit_is_reported_and_the_others_go_on(caplog) -> None:
    bad = site() | {"spec": {"text": 5}}
    client = FakeClient(DEFINITION, bad, site("good", name="b"))
    operator = make_operator(predicates=[by_kind(updated=lambda event: event.new.spec.text != "")])
    seen: list[str] = []

    @operator.reconcile
    async def note(found: Site, _ctx: Context[Site]) -> None:
        seen.append(found.spec.text)

    async with running(client, operator):
        await asyncio.sleep(1)
        assert set(seen) == {"good"}
        assert "reconcile of default/a failed, not tried again" in caplog.text
        assert "does not fit Site: Expected `str`, got `int` - at `$.spec.text`" in caplog.text
        await asyncio.sleep(10)
        (event,) = client.source("v1/events").objects.values()
        assert (event["reason"], event["involvedObject"]["name"]) == ("Undecodable", "a")
        client.put(site("mended"))
        await asyncio.sleep(1)
        assert seen[-1] == "mended"
        client.put(bad)
        await asyncio.sleep(1)
        client.remove(PATH, "a")
        client.put(site("new", name="c"))
        await asyncio.sleep(1)
        assert seen[-1] == "new"


async def test_a_wrong_return_value_is_an_error_of_that_object(caplog) -> None:
    client = FakeClient(DEFINITION, site("wrong"), site("right", name="b"))
    operator, calls = make_operator(), []

    @operator.reconcile
    async def decide(found: Site, _ctx: Context[Site]) -> Any:
        calls.append(found.spec.text)
        return 30 if found.spec.text == "wrong" else None

    async with running(client, operator):
        await asyncio.sleep(1)
    assert calls.count("right") == 1
    assert calls.count("wrong") > 2
    assert "reconcile returned int; return a Result or None" in caplog.text


async def test_a_definition_that_may_not_be_created_says_what_to_do() -> None:
    client, operator = FakeClient(), make_operator()
    publishing(operator)
    client.fail_next(api_error(403, "Forbidden", "no"), method="PATCH")
    manager = make_manager(client, operator, health_port=None)
    with pytest.raises(Exception, match="no") as caught:
        await manager.run()
    assert "give the Operator no definition=" in "".join(caught.value.__notes__)


async def test_one_steps_down_to_a_manager_of_ones_own() -> None:
    client, operator = FakeClient(DEFINITION, site()), make_operator(definition=None)
    publishing(operator)
    factory, recorder, manager = (
        SharedInformerFactory(client),
        EventRecorder("x", client),
        Manager(),
    )
    manager.add(recorder, group=Group.RECORDERS)
    controller = operator.controller(client, factory, recorder)
    manager.add(Caches(factory), group=Group.CACHES)
    manager.add(controller)
    task = asyncio.create_task(manager.run())
    await asyncio.sleep(1)
    assert client.find("v1/configmaps", "a-page") is not None
    manager.stop()
    await task


def test_what_is_not_async_is_refused() -> None:
    operator = make_operator()
    untyped: Any = operator
    with pytest.raises(TypeError, match="publish must be a coroutine function: write async def"):

        @untyped.reconcile
        def publish(_found: Site, _ctx: Context[Site]) -> None: ...

    with pytest.raises(TypeError, match="take_down must be a coroutine function"):

        @untyped.finalizer("example.com/sites")
        def take_down(_found: Site, _ctx: Context[Site]) -> None: ...

    assert (operator.handler, operator.finalizers) == (None, {})
    later = functools.partial(_later, operator)
    operator.reconcile(later)  # what returns an awaitable may be any callable
    assert operator.handler is later


async def _later(_operator: Operator[Site], _found: Site, _ctx: Context[Site]) -> None: ...


def test_what_is_incomplete_or_given_twice_is_refused() -> None:
    operator = make_operator()
    client: Client = FakeClient()
    with pytest.raises(ValueError, match="decorate one with @reconcile"):
        operator.controller(client, SharedInformerFactory(client), EventRecorder("x", client))
    publishing(operator)
    with pytest.raises(ValueError, match="has its reconcile function already"):
        publishing(operator)
    operator.finalizer("x.io/a")(operator.handler)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="registered already"):
        operator.finalizer("x.io/a")(operator.handler)  # type: ignore[arg-type]
    for name in ("bye", operator.handler):
        with pytest.raises(ValueError, match=r"as in @finalizer\('example.com/sites'\)"):
            operator.finalizer(name)  # type: ignore[arg-type]


def test_what_does_not_fit_the_kind_is_refused() -> None:
    with pytest.raises(TypeError, match="Struct with a metadata field"):
        Operator(Spec, PATH)
    with pytest.raises(TypeError, match=r"give a list, as in owns=\['v1/configmaps'\]"):
        make_operator(owns="v1/configmaps")
    definition = custom_resource_definition(Site, PATH)
    with pytest.raises(ValueError, match=r"v1/pages is not of sites.example.com, its definition"):
        Operator(Site, "example.com/v1/pages", definition=definition)


async def test_a_status_must_be_a_struct(caplog) -> None:
    client, operator = FakeClient(DEFINITION, site()), make_operator()

    @operator.reconcile
    async def publish(_found: Site, ctx: Context[Site]) -> None:
        await ctx.report({"page": "a"})  # type: ignore[arg-type]

    async with running(client, operator):
        await asyncio.sleep(0.1)
    assert "report takes a Struct such as Status(), not dict" in caplog.text
