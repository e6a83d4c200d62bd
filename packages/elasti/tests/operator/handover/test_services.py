"""What may happen to the Service of an ElastiService, on both servers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.controllers.support import deployment, eventually
from tests.operator.recorder import Recorder
from tests.operator.rig import FakePrometheus, Rig
from tests.operator.servers import everywhere_fast

from elasti.api.names import private_service_name
from elasti.operator.model.children import slice_names
from kubeloop.client import NotFound
from kubeloop.objects.meta import JsonObject
from kubeloop.objects.patches import MergePatch

pytestmark = [everywhere_fast, pytest.mark.timeout(180)]

WEB = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}


async def test_an_elastiservice_may_come_before_its_target_and_its_service(rig: Rig):
    await rig.elastiservice()
    async with rig.operator():
        told = await rig.tells("Ready", "TargetMissing")
        assert "Deployment web" in told["message"]
        await rig.cluster.deployments.create(deployment("web", 0))
        told = await rig.tells("Ready", "ServiceMissing")
        assert "Service web" in told["message"]
        assert (await rig.condition("ServiceFound"))["status"] == "False"
        await rig.service()
        await rig.becomes("Proxy")
        await eventually(rig.addresses)
        assert (await rig.condition("Ready"))["status"] == "True"
        await eventually(lambda: rig.events("TargetMissing"))
        await eventually(lambda: rig.events("ServiceMissing"))


@pytest.mark.garbage_collector
async def test_a_service_that_is_deleted_and_made_again_is_held_again(rig: Rig):
    await rig.web(replicas=0)
    async with rig.operator():
        await eventually(rig.addresses)
        before = await _slice(rig)
        await rig.cluster.services.delete("web")
        await rig.tells("Ready", "ServiceMissing")
        await eventually(lambda: _companions_are_gone(rig))
        assert await rig.replicas() == 0
        made = await rig.service()
        await eventually(rig.addresses)
        after = await _slice(rig)
        assert after["metadata"]["ownerReferences"][0]["uid"] == made["metadata"]["uid"]
        assert [p["port"] for p in after["ports"]] == [p["port"] for p in before["ports"]]
        await rig.becomes("Proxy")


async def test_changed_ports_are_followed_while_it_sleeps(rig: Rig):
    await rig.web(replicas=0)
    async with rig.operator(), Recorder(rig).running() as recorder:
        await eventually(rig.addresses)
        before = (await rig.status())["resolverPorts"]
        await _change(rig, ports=[{"name": "http", "port": 1111}])
        await eventually(lambda: _follows(rig, {"app": "web"}, {"http": 1111}))
        both = [{"name": "http", "port": 1111}, {"name": "admin", "port": 9000}]
        await _change(rig, ports=both)
        await eventually(lambda: _follows(rig, {"app": "web"}, {"http": 1111, "admin": 9000}))
        assert recorder.dark_moments() == []
        after = (await rig.status())["resolverPorts"]
        freed = {port["resolverPort"] for port in before}
        assert not freed & {port["resolverPort"] for port in after}, "a freed port must rest"


async def test_a_selector_that_leaves_the_target_wakes_it_until_it_is_mended(rig: Rig):
    await rig.web(replicas=0)
    async with rig.operator():
        await rig.becomes("Proxy")
        # KubeElasti's own case: the only port and the selector change at once.
        await _change(rig, selector={"app": "other"}, ports=[{"name": "http", "port": 1111}])
        await rig.tells("Ready", "SelectsOtherPods")
        await eventually(lambda: _mirrors(rig, {"app": "other"}, [1111]))
        assert await rig.replicas() == 1
        assert await rig.slice() is None
        await _change(rig, selector={"app": "web"})
        await rig.tells("Ready", "Valid")
        await rig.scale(0)
        await eventually(rig.addresses)
        await eventually(lambda: _follows(rig, {"app": "web"}, {"http": 1111}))


async def test_ports_that_change_while_it_serves_are_there_at_the_next_sleep(
    rig: Rig, prometheus: FakePrometheus
):
    prometheus.value = 9.0
    await rig.web(triggers=[prometheus.trigger()])
    async with rig.operator():
        await rig.becomes("Serve")
        await _change(rig, ports=[{"name": "grpc", "port": 50051, "targetPort": 8080}])

        async def private_follows() -> bool:
            private = await rig.cluster.services.get(private_service_name("web"))
            return [p["port"] for p in private["spec"]["ports"]] == [50051]

        await eventually(private_follows)
        prometheus.value = 0.0
        await rig.becomes("Proxy")
        await eventually(lambda: _follows(rig, {"app": "web"}, {"grpc": 50051}))


@pytest.mark.parametrize("replicas", [0, 1])
async def test_another_service_named_in_spec_takes_over(rig: Rig, replicas: int):
    await rig.web(replicas=replicas)
    await rig.service("other", selector={"app": "web"})
    async with rig.operator() as operator:
        await rig.becomes("Serve" if replicas else "Proxy")
        await rig.elastiservices.patch("web", MergePatch({"spec": {"service": "other"}}))

        async def moved() -> bool:
            private = await rig.cluster.get("services", private_service_name("other"))
            old = await rig.cluster.get("services", private_service_name("web"))
            held = await rig.addresses("other") if not replicas else ["-"]
            return private is not None and old is None and bool(held)

        await eventually(moved)
        assert await rig.slice("web") is None
        assert (await rig.wake(operator, "web"))[0] == 404
        assert (await rig.wake(operator, "other"))[0] == 202
        await rig.becomes("Serve")
        assert await rig.slice("other") is None


async def test_a_service_that_is_no_longer_named_is_left_at_once(rig: Rig):
    # Its port means nothing any more: what still went there would be refused.
    await rig.web(replicas=0)
    await rig.service("other", selector={"app": "web"})
    async with rig.operator(sweep_period=3600.0):
        await eventually(rig.addresses)
        await rig.elastiservices.patch("web", MergePatch({"spec": {"service": "other"}}))

        async def left() -> bool:
            return await rig.slice("web") is None

        await eventually(left)
        await eventually(lambda: rig.addresses("other"))


async def test_the_second_elastiservice_of_a_service_is_refused_and_inherits_it(rig: Rig):
    await rig.web(replicas=0)
    await asyncio.sleep(1.1)  # creation times are whole seconds
    await rig.elastiservice("second", service="web", scaleTargetRef=WEB)
    async with rig.operator() as operator:
        await eventually(rig.addresses)
        told = await rig.tells("Ready", "ServiceOwnedByAnother", "second")
        assert told["status"] == "False"
        assert "ElastiService web" in told["message"]
        assert "second" not in (await rig.condition("Ready")).get("message", "")
        # The refused one may go without taking anything with it.
        await rig.elastiservice("third", service="web", scaleTargetRef=WEB)
        await rig.tells("Ready", "ServiceOwnedByAnother", "third")
        await rig.elastiservices.delete("third")
        await eventually(lambda: _is_gone(rig, "third"))
        assert await rig.addresses() == [rig.resolver.shown]
        await rig.elastiservices.delete("web")
        await rig.becomes("Serve", "second")
        assert (await rig.condition("Ready", "second"))["status"] == "True"
        await rig.scale(0)
        await rig.becomes("Proxy", "second")
        assert (await rig.wake(operator, "web"))[0] == 202


async def test_both_families_of_a_service_are_held(rig: Rig):
    await rig.cluster.deployments.create(deployment("web", 0))
    await rig.service(ipFamilyPolicy="RequireDualStack", ipFamilies=["IPv4", "IPv6"])
    await rig.elastiservice()
    async with rig.another_resolver("fd00:77::2") as six, rig.operator() as operator:
        await rig.list_resolvers(six.endpoint(), family="IPv6")
        try:
            await eventually(lambda: rig.addresses(family="IPv6"))
            await eventually(rig.addresses)
            assert await rig.addresses() == [rig.resolver.shown]
            assert await rig.addresses(family="IPv6") == ["fd00:77::2"]
            found = [await rig.slice(family=family) or {} for family in ("IPv4", "IPv6")]
            assert [piece["addressType"] for piece in found] == ["IPv4", "IPv6"]
            assert found[0]["ports"] == found[1]["ports"]
            await rig.wake(operator, "web")
            await rig.becomes("Serve")
            assert await rig.slice() is None
            assert await rig.slice(family="IPv6") is None
        finally:
            await rig.list_resolvers(family="IPv6")


def unlabelled(name: str, family: str, kind: str) -> JsonObject:
    """A slice of the name that ours would have, and nothing else of it."""
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": slice_names(name)[family]},
        "addressType": kind,
        "endpoints": [],
        "ports": [],
    }


@pytest.mark.parametrize("kind", ["IPv6", "IPv4"])
async def test_a_slice_of_either_family_is_taken_over_that_has_our_name_only(rig: Rig, kind: str):
    await rig.cluster.deployments.create(deployment("web", 0))
    await rig.service(ipFamilyPolicy="RequireDualStack", ipFamilies=["IPv4", "IPv6"])
    await rig.cluster.slices.create(unlabelled("web", "IPv6", kind))
    await rig.elastiservice()
    async with rig.another_resolver("fd00:77::2") as six, rig.operator():
        await rig.list_resolvers(six.endpoint(), family="IPv6")
        try:
            await eventually(lambda: rig.addresses(family="IPv6"))
            found = await rig.slice(family="IPv6") or {}
            assert found["addressType"] == "IPv6"
            assert found["metadata"]["labels"]["endpointslice.kubernetes.io/managed-by"] == "elasti"
            # While all this is at work, somebody takes the labels off.
            labels = MergePatch({"metadata": {"labels": None}})
            await rig.cluster.slices.patch(found["metadata"]["name"], labels)

            async def labelled() -> bool:
                return "labels" in (await rig.slice(family="IPv6") or {"metadata": {}})["metadata"]

            await eventually(labelled)
        finally:
            await rig.list_resolvers(family="IPv6")


async def test_a_slice_of_ours_that_is_deleted_or_changed_comes_back(rig: Rig):
    await rig.web(replicas=0)
    async with rig.operator():
        await eventually(rig.addresses)
        before = await _slice(rig)
        await rig.cluster.slices.delete(before["metadata"]["name"])

        async def back() -> bool:
            found = await rig.slice()
            return found is not None and found["metadata"]["uid"] != before["metadata"]["uid"]

        await eventually(back)
        assert [p["port"] for p in (await _slice(rig))["ports"]] == [
            p["port"] for p in before["ports"]
        ]
        await rig.cluster.slices.patch(before["metadata"]["name"], MergePatch({"endpoints": []}))
        await eventually(rig.addresses)


async def _change(rig: Rig, **spec: Any) -> None:
    service = await rig.cluster.services.get("web")
    service["spec"] |= spec
    await rig.cluster.services.replace(service)


async def _follows(rig: Rig, selector: dict[str, str], ports: dict[str, int]) -> bool:
    """Whether private Service, slice and status all show these."""
    private = await rig.cluster.services.get(private_service_name("web"))
    shown = {p["name"]: p["port"] for p in (await rig.status())["resolverPorts"]}
    return (
        private["spec"]["selector"] == selector
        and {p["name"]: p["port"] for p in private["spec"]["ports"]} == ports
        and {p["name"] for p in (await _slice(rig))["ports"]} == ports.keys()
        and shown == ports
        and (await rig.addresses()) == [rig.resolver.shown]
    )


async def _mirrors(rig: Rig, selector: dict[str, str], ports: list[int]) -> bool:
    """Whether the private Service shows these."""
    spec = (await rig.cluster.services.get(private_service_name("web")))["spec"]
    return spec["selector"] == selector and [port["port"] for port in spec["ports"]] == ports


async def _slice(rig: Rig) -> JsonObject:
    found = await rig.slice()
    assert found is not None
    return found


async def _companions_are_gone(rig: Rig) -> bool:
    private = await rig.cluster.get("services", private_service_name("web"))
    return private is None and await rig.slice() is None


async def _is_gone(rig: Rig, name: str) -> bool:
    try:
        await rig.elastiservices.get(name)
    except NotFound:
        return True
    return False
