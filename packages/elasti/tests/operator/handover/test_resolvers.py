"""Resolvers that come and go, and the ports that they are reached on, on both servers."""

from __future__ import annotations

import asyncio
import contextlib
import functools

import pytest
from tests.operator.recorder import Recorder
from tests.operator.rig import FakePrometheus, Rig
from tests.operator.servers import everywhere_fast

from elasti.operator import leader
from elasti.operator.handover import ports
from elasti.operator.settings import OnResolverLoss
from kubeloop.objects.meta import JsonObject
from kubeloop.objects.patches import MergePatch
from tests.waiting import eventually

pytestmark = [everywhere_fast, pytest.mark.timeout(180)]


async def test_resolvers_are_scaled_from_one_to_three_to_none_and_back(rig: Rig):
    await rig.web(replicas=0)
    async with contextlib.AsyncExitStack() as stack:
        more = [await stack.enter_async_context(rig.another_resolver()) for _ in range(2)]
        everyone = [rig.resolver, *more]
        shown = sorted(one.shown for one in everyone)
        await stack.enter_async_context(rig.operator())
        recorder = await stack.enter_async_context(Recorder(rig).running())
        await eventually(lambda: _listed(rig, [rig.resolver.shown]))
        await rig.list_resolvers(*(one.endpoint() for one in everyone))
        await eventually(lambda: _listed(rig, shown))
        assert recorder.dark_moments() == []
        # The last ones on their way out still take what comes, until they are gone.
        await rig.list_resolvers(*(one.endpoint(ready=False) for one in everyone))
        await rig.tells("ResolverAvailable", "NoneReady")
        assert await rig.addresses() == shown
        await rig.list_resolvers()
        await rig.becomes("Serve")
        assert await rig.replicas() == 1
        await eventually(lambda: rig.events("NoResolver"))
        assert await rig.slice() is None
        await rig.list_resolvers(more[0].endpoint())
        await rig.tells("ResolverAvailable", "Available")
        await rig.scale(0)
        await eventually(lambda: _listed(rig, [more[0].shown]))


async def test_without_a_ready_resolver_nothing_is_parked(rig: Rig, prometheus: FakePrometheus):
    await rig.list_resolvers(rig.resolver.endpoint(ready=False))
    await rig.web(triggers=[prometheus.trigger()])
    async with rig.operator():
        await eventually(lambda: len(prometheus.queries) >= 16)
        assert await rig.state() == "Serve"
        assert await rig.replicas() == 1
        told = await rig.condition("ResolverAvailable")
        assert (told["status"], told["reason"]) == ("False", "NoneReady")
        await rig.list_resolvers(rig.resolver.endpoint())
        await rig.becomes("Proxy")


async def test_many_sleepers_are_all_woken_when_resolvers_are_lost(rig: Rig):
    names = [f"web-{number}" for number in range(6)]
    for name in names:
        await rig.web(replicas=0, name=name)
    async with rig.operator():
        for name in names:
            await rig.becomes("Proxy", name)
        await rig.list_resolvers()
        for name in names:
            await rig.becomes("Serve", name)
        told = [event["involvedObject"]["name"] for event in await rig.events("NoResolver")]
        assert sorted(told) == names


async def test_many_sleepers_all_come_to_another_resolver(rig: Rig):
    names = [f"web-{number}" for number in range(10)]
    for name in names:
        await rig.web(replicas=0, name=name)
    async with rig.another_resolver() as another, rig.operator():
        for name in names:
            await rig.becomes("Proxy", name)
        await rig.list_resolvers(another.endpoint())

        async def moved() -> bool:
            return all([await rig.addresses(name) == [another.shown] for name in names])

        await eventually(moved)


async def test_a_lost_resolver_may_be_waited_for(rig: Rig):
    await rig.web(replicas=0)
    async with rig.operator(on_resolver_loss=OnResolverLoss.WAIT):
        await rig.becomes("Proxy")
        await rig.list_resolvers()
        await rig.tells("ResolverAvailable", "NoneReady")
        await asyncio.sleep(1.0)  # twice the grace: nothing must happen in it
        assert await rig.replicas() == 0
        await rig.list_resolvers(rig.resolver.endpoint())
        await eventually(lambda: _listed(rig, [rig.resolver.shown]))


async def test_only_a_resolver_that_answers_for_the_service_is_listed(rig: Rig):
    await rig.web(replicas=0)
    async with rig.another_resolver() as mute, rig.operator():
        mute.answers_probes = False
        await rig.list_resolvers(rig.resolver.endpoint(), mute.endpoint())
        await eventually(lambda: _listed(rig, [rig.resolver.shown]))
        mute.answers_probes = True
        await eventually(lambda: _listed(rig, sorted([rig.resolver.shown, mute.shown])))


# Ports


async def test_of_two_that_claim_one_port_the_older_keeps_it(rig: Rig):
    """As after a restore from a backup: both report the same resolver port, both are asleep."""
    await rig.web(replicas=0, name="older")
    await asyncio.sleep(1.1)  # creation times are whole seconds
    await rig.web(replicas=0, name="younger")
    for name in ("older", "younger"):
        forced = {"status": {"resolverPorts": [{"port": 80, "resolverPort": 23456}]}}
        await rig.elastiservices.subresource("status").patch(name, MergePatch(forced))
    async with rig.operator():
        for name in ("older", "younger"):
            await rig.becomes("Proxy", name)
            await eventually(functools.partial(rig.addresses, name))
        assert await _resolver_port(rig, "older") == 23456
        moved = await _resolver_port(rig, "younger")
        assert moved != 23456
        found: JsonObject = await rig.slice("younger") or {}
        assert [port["port"] for port in found["ports"]] == [moved]
        (event,) = await eventually(lambda: rig.events("PortContested"))
        assert event["involvedObject"]["name"] == "younger"
        assert "23456" in event["message"]


async def test_a_published_port_outlives_a_lost_status(rig: Rig):
    await rig.web(replicas=0)
    async with rig.operator():
        await eventually(rig.addresses)
    published = await _resolver_port(rig, "web")
    await rig.elastiservices.subresource("status").patch("web", MergePatch({"status": None}))
    async with rig.operator(), Recorder(rig).running() as recorder:
        await rig.becomes("Proxy")
        assert await _resolver_port(rig, "web") == published
        assert recorder.dark_moments() == []


async def test_a_lack_of_ports_is_reported_and_others_go_on(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(leader, "PortBook", lambda *_range: ports.PortBook(21000, 21000))
    await rig.web(replicas=0, name="first")
    async with rig.operator(watch_namespaces=(rig.namespace,)) as operator:
        await rig.becomes("Proxy", "first")
        await rig.web(replicas=0, name="second")
        told = await rig.tells("Ready", "PortsExhausted", "second")
        assert told["status"] == "False"
        assert await rig.slice("second") is None
        assert await rig.addresses("first") == [rig.resolver.shown]
        assert (await rig.wake(operator, "second"))[0] == 202
        # What the first one leaves rests; the second is not given it, however much it wants one.
        await rig.elastiservices.delete("first")
        await eventually(lambda: _is_gone(rig, "first"))
        told = await rig.tells("Ready", "PortsExhausted", "second")
        assert not (await rig.status("second")).get("resolverPorts")


async def _listed(rig: Rig, wanted: list[str]) -> bool:
    return await rig.addresses() == wanted


async def _resolver_port(rig: Rig, name: str) -> int:
    (port,) = (await rig.status(name))["resolverPorts"]
    return int(port["resolverPort"])


async def _is_gone(rig: Rig, name: str) -> bool:
    return name not in [es["metadata"]["name"] async for es in rig.elastiservices.items()]
