"""Names and kinds to resources: the pure index, and the memory around it."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from tests.client import discovery_samples as samples
from tests.client.rest import client_of
from tests.testing.scripted_answers import reply
from tests.testing.scripted_server import ScriptedServer

from kubeloop.client.discovery import Discovered, parse_root
from kubeloop.client.errors import AmbiguousMatch, NoMatch, ServiceUnavailable, Status
from kubeloop.client.mapper import ResourceIndex, RestMapper


def discovered(*documents) -> Discovered:
    whole = Discovered(versions={}, resources=())
    for document in documents:
        part = parse_root(msgspec.json.encode(document))
        assert isinstance(part, Discovered)
        whole = whole.joined(part)
    return whole


WIDGETS = samples.aggregated_resource("widgets", "Widget", shortNames=["wd"])
ALL = discovered(
    samples.CORE,
    samples.GROUPS,
    samples.aggregated(
        samples.aggregated_group("acme.com", samples.version("v1", WIDGETS)),
        samples.aggregated_group("shop.io", samples.version("v2", WIDGETS)),
    ),
)
INDEX = ResourceIndex(ALL)


@pytest.mark.parametrize(
    ("name", "gvr"),
    [
        ("pods", "v1/pods"),
        ("pod", "v1/pods"),
        ("po", "v1/pods"),
        ("Pod", "v1/pods"),
        ("pods.v1", "v1/pods"),
        ("deploy", "apps/v1/deployments"),
        ("deployments.apps", "apps/v1/deployments"),
        ("deployment.apps", "apps/v1/deployments"),
        ("deployments.v1.apps", "apps/v1/deployments"),
        ("deployments.v1beta1.apps", "apps/v1beta1/deployments"),
        ("events", "v1/events"),
        ("events.events.k8s.io", "events.k8s.io/v1/events"),
        ("ev.v1.events.k8s.io", "events.k8s.io/v1/events"),
        ("widgets.acme.com", "acme.com/v1/widgets"),
    ],
)
def test_people_may_call_a_resource_by_any_of_its_names(name, gvr):
    assert str(INDEX.resolve(name).gvr) == gvr


@pytest.mark.parametrize(
    ("api_version", "kind", "gvr"),
    [
        ("v1", "Pod", "v1/pods"),
        ("apps/v1", "Deployment", "apps/v1/deployments"),
        ("apps/v1beta1", "Deployment", "apps/v1beta1/deployments"),
        ("apps", "Deployment", "apps/v1/deployments"),
        ("", "Deployment", "apps/v1/deployments"),
        ("", "Event", "v1/events"),
    ],
)
def test_kind_is_found_in_version_or_in_preferred_one(api_version, kind, gvr):
    assert str(INDEX.by_kind(api_version, kind).gvr) == gvr


def test_several_groups_with_one_name_are_listed_to_choose_from():
    for question in (lambda: INDEX.resolve("wd"), lambda: INDEX.by_kind("", "Widget")):
        with pytest.raises(AmbiguousMatch) as caught:
            question()
        assert "one of widgets.acme.com, widgets.shop.io" in str(caught.value)


def test_an_unknown_name_lists_near_names_and_unread_groups():
    with pytest.raises(NoMatch) as caught:
        INDEX.resolve("deploymets")
    message = str(caught.value)
    assert "no resource 'deploymets'" in message
    assert "deployments" in message
    assert "metrics.k8s.io/v1beta1: its server did not answer" in message


def test_an_unknown_kind_lists_near_kinds_and_other_versions():
    with pytest.raises(NoMatch, match="near: Deployment"):
        INDEX.by_kind("apps/v1", "Deploymnet")
    with pytest.raises(NoMatch, match="it is served as apps/v1/Deployment, apps/v1beta1/Depl"):
        INDEX.by_kind("extensions/v1beta1", "Deployment")
    with pytest.raises(NoMatch, match="custom resource definition installed") as caught:
        INDEX.by_kind("acme.com/v1", "Gadget")
    assert "metrics" not in str(caught.value)


def test_kind_served_only_in_parts_of_others_is_not_a_resource():
    partial = samples.aggregated_resource("things", "", subresources=[{"subresource": "status"}])
    index = ResourceIndex(
        discovered(
            samples.aggregated(samples.aggregated_group("x.y", samples.version("v1", partial)))
        )
    )
    with pytest.raises(NoMatch):
        index.resolve("things")


def test_of_two_resources_of_one_kind_readable_one_is_meant():
    reviews = samples.aggregated_resource("podreviews", "Pod", verbs=["create"])
    document = samples.aggregated(
        samples.aggregated_group("", samples.version("v1", reviews, samples.PODS))
    )
    assert ResourceIndex(discovered(document)).by_kind("v1", "Pod").gvr.resource == "pods"


class FakeDiscovery:
    """Counts how often it is asked, and takes a second for it."""

    def __init__(self) -> None:
        self.result: Discovered | Exception = ALL
        self.fetched = 0

    async def fetch(self) -> Discovered:
        self.fetched += 1
        await asyncio.sleep(1)
        if isinstance(self.result, Exception):
            raise self.result
        return self.result


def with_gadgets() -> Discovered:
    gadgets = samples.aggregated_resource("gadgets", "Gadget")
    group = samples.aggregated_group("acme.com", samples.version("v1", gadgets))
    return ALL.joined(discovered(samples.aggregated(group)))


@pytest.mark.virtual_time
async def test_answers_come_from_memory_after_the_first_question():
    discovery = FakeDiscovery()
    mapper = RestMapper(discovery)
    for _ in range(3):
        assert (await mapper.resolve("po")).kind == "Pod"
    assert (await mapper.by_kind("v1", "Pod")).gvr.resource == "pods"
    assert len(await mapper.resources()) == len(ALL.resources)
    assert discovery.fetched == 1


@pytest.mark.virtual_time
async def test_all_who_ask_at_once_share_one_discovery():
    discovery = FakeDiscovery()
    mapper = RestMapper(discovery)
    await asyncio.gather(*(mapper.resolve("po") for _ in range(50)))
    assert discovery.fetched == 1


@pytest.mark.virtual_time
async def test_one_who_gives_up_does_not_disturb_the_others():
    discovery = FakeDiscovery()
    mapper = RestMapper(discovery)
    first, second = (asyncio.ensure_future(mapper.resolve("po")) for _ in range(2))
    await asyncio.sleep(0.5)
    first.cancel()
    assert (await second).kind == "Pod"
    assert discovery.fetched == 1


@pytest.mark.virtual_time
async def test_miss_discovers_once_more_because_definition_may_be_new():
    discovery = FakeDiscovery()
    mapper = RestMapper(discovery)
    await mapper.resolve("po")
    discovery.result = with_gadgets()
    await asyncio.sleep(5)
    assert (await mapper.by_kind("acme.com/v1", "Gadget")).gvr.resource == "gadgets"
    assert discovery.fetched == 2


@pytest.mark.virtual_time
async def test_misses_do_not_discover_oftener_than_every_few_seconds():
    discovery = FakeDiscovery()
    mapper = RestMapper(discovery, seconds_between=5)
    for _ in range(140):
        with pytest.raises(NoMatch):
            await mapper.resolve("nonsense")
        await asyncio.sleep(0.1)
    # 14 s of misses: the first question, and one more each 5 s after the last discovery ended.
    assert discovery.fetched == 3


@pytest.mark.virtual_time
async def test_failed_discovery_is_reported_and_next_question_tries_again():
    discovery = FakeDiscovery()
    mapper = RestMapper(discovery)
    discovery.result = ServiceUnavailable(Status(code=503, message="starting"))
    with pytest.raises(ServiceUnavailable, match="starting"):
        await mapper.resolve("po")
    discovery.result = ALL
    assert (await mapper.resolve("po")).kind == "Pod"


@pytest.mark.virtual_time
async def test_what_was_known_stays_usable_while_discovery_fails():
    discovery = FakeDiscovery()
    mapper = RestMapper(discovery)
    await mapper.resolve("po")
    await asyncio.sleep(10)
    discovery.result = ServiceUnavailable(Status(code=503, message="starting"))
    with pytest.raises(ServiceUnavailable):
        await mapper.resolve("nonsense")
    assert (await mapper.resolve("po")).kind == "Pod"


@pytest.mark.virtual_time
async def test_invalidate_forgets():
    discovery = FakeDiscovery()
    mapper = RestMapper(discovery)
    await mapper.resolve("po")
    mapper.invalidate()
    await mapper.resolve("po")
    assert discovery.fetched == 2


async def test_client_finds_resource_of_kind_and_knows_scope():
    async with ScriptedServer() as server, client_of(server) as client:
        server.expect("GET", "/api", reply(samples.CORE))
        server.expect("GET", "/apis", reply(samples.GROUPS))
        deployments = await client.resource_for("apps/v1", "Deployment")
        assert str(deployments.gvr) == "apps/v1/deployments"
        with pytest.raises(ValueError, match="apps/v1/deployments is namespaced: pass namespace="):
            await deployments.get("web")
        nodes = await client.resource_for("v1", "Node")
        with pytest.raises(ValueError, match="v1/nodes is cluster-scoped"):
            await nodes.get("n", namespace="a")
        with pytest.raises(ValueError, match="v1/nodes is cluster-scoped"):
            nodes.within("a")
        path = "/apis/apps/v1/namespaces/a/deployments/web"
        server.expect("GET", path, reply({"metadata": {"name": "web"}}))
        assert await deployments.get("web", namespace="a")


@pytest.mark.virtual_time
async def test_a_refresh_discovers_again_but_not_again_and_again():
    discovery = FakeDiscovery()
    mapper = RestMapper(discovery)
    await mapper.refresh()
    assert discovery.fetched == 0, "the first question discovers anyway"
    await mapper.resolve("po")
    await mapper.refresh()
    assert discovery.fetched == 1
    await asyncio.sleep(3600)
    discovery.result = with_gadgets()
    await asyncio.gather(mapper.refresh(), mapper.refresh())
    assert discovery.fetched == 2
    assert (await mapper.resolve("gadgets.acme.com")).kind == "Gadget"
    assert discovery.fetched == 2
