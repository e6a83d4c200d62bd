"""Ports that rest go on resting through restarts, and nobody waits for that."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
from pathlib import Path
from typing import Any

import pytest
from tests.controllers.support import eventually
from tests.operator.accounts import Account, confined_operator
from tests.operator.fakes import ELASTISERVICES, RESOLVER_NAMESPACE
from tests.operator.rig import Rig
from tests.operator.servers import everywhere_fast

from elasti.api.names import QUARANTINE_CONFIG_MAP
from elasti.api.types import ElastiService
from elasti.operator.handover.ports import QUARANTINE, PortBook, PortOwner
from elasti.operator.handover.quarantine import PortQuarantine
from elasti.operator.rbac import LEASE_RULES, NAMESPACED_RULES, RESOLVER_NAMESPACE_RULES
from kubeloop.client import KubeError, NotFound
from kubeloop.client.errors import AlreadyExists, Forbidden, Status
from kubeloop.informer import SharedInformerFactory
from kubeloop.objects.patches import MergePatch

OLD = PortOwner("2030-01-01T00:00:00Z", "a")


def test_what_rests_from_before_is_neither_given_nor_claimed():
    book = PortBook()
    first = PortBook().assign(OLD, "shop/web", [80], 0.0)[80]
    book.quarantine(first, 100.0 - 1800.0)
    assert book.assign(OLD, "shop/web", [80], 100.0)[80] != first
    book.claim(PortOwner("2030-01-02T00:00:00Z", "b"), {80: first})
    assert book.held_by(PortOwner("2030-01-02T00:00:00Z", "b")) == {}


def test_what_is_held_does_not_rest_and_nothing_outside_the_range_does():
    book = PortBook()
    book.claim(OLD, {80: 20001})
    for port in (20001, 8012, 30000):
        book.quarantine(port, 0.0)
    assert book.held_by(OLD) == {80: 20001}
    assert repr(book) == "<PortBook 1 held, 0 freed of 10000>"


class Clock:
    def __init__(self) -> None:
        self.time = dt.datetime(2030, 1, 1, tzinfo=dt.UTC)

    def now(self) -> dt.datetime:
        return self.time

    def advance(self, seconds: float) -> None:
        self.time += dt.timedelta(seconds=seconds)


class Maps:
    """A namespace's ConfigMaps, of which there is one at most."""

    def __init__(self) -> None:
        self.data: dict[str, str] | None = None
        self.failure: KubeError | None = None
        self.writes = 0
        self.takes = 0.0

    def resource(self, _name: str, *, namespace: str) -> Maps:
        assert namespace == "elasti"
        return self

    async def get(self, name: str):
        self._check()
        if self.data is None:
            raise NotFound(Status(code=404))
        return {"data": dict(self.data)}

    async def patch(self, name: str, patch: MergePatch, *, field_manager: str) -> None:
        await asyncio.sleep(self.takes)
        self._check()
        if self.data is None:
            raise NotFound(Status(code=404))
        self.writes += 1
        for key, value in patch.content["data"].items():
            if value is None:
                self.data.pop(key, None)
            else:
                self.data[key] = value

    async def create(self, body, *, field_manager: str) -> None:
        self._check()
        if self.data is not None:
            raise AlreadyExists(Status(code=409))
        self.writes += 1
        self.data = dict(body["data"])

    def _check(self) -> None:
        if self.failure is not None:
            raise self.failure


def resting(maps: Maps, clock: Clock) -> PortQuarantine:
    return PortQuarantine(maps, namespace="elasti", clock=clock)  # type: ignore[arg-type]


async def test_what_is_noted_is_found_by_the_next_until_its_hour_is_over():
    maps, clock = Maps(), Clock()
    await resting(maps, clock).note([20001, 20002])
    clock.advance(600)
    assert await resting(maps, clock).load() == {20001: 600.0, 20002: 600.0}
    clock.advance(QUARANTINE)
    assert await resting(maps, clock).load() == {}


async def test_a_config_map_holds_the_youngest_of_too_many():
    maps, clock = Maps(), Clock()
    book = resting(maps, clock)
    await book.note(range(20000, 30000))
    clock.advance(1)
    await book.note(range(30000, 40000))
    assert maps.data is not None
    assert len(maps.data) == 15_000
    assert {str(port) for port in range(30000, 40000)} <= maps.data.keys(), "the oldest go"


async def test_what_is_over_goes_with_the_next_write():
    maps, clock = Maps(), Clock()
    book = resting(maps, clock)
    await book.note([20001])
    clock.advance(QUARANTINE)
    await book.note([20002])
    assert set(maps.data or ()) == {"20002"}
    assert maps.writes == 2


async def test_noting_again_writes_nothing():
    maps, clock = Maps(), Clock()
    book = resting(maps, clock)
    for _ in range(5):
        await book.note([20001])
    await book.note([])
    assert maps.writes == 1


@pytest.mark.virtual_time
async def test_many_at_once_are_few_writes():
    maps, clock = Maps(), Clock()
    maps.data, maps.takes = {}, 1.0
    book = resting(maps, clock)
    await asyncio.gather(*(book.note([20000 + number]) for number in range(500)))
    assert len(maps.data) == 500
    assert maps.writes <= 2


async def test_a_failed_write_is_the_callers_to_repeat_and_loses_nothing():
    maps, clock = Maps(), Clock()
    book = resting(maps, clock)
    maps.failure = KubeError("away")
    with pytest.raises(KubeError):
        await book.note([20001])
    maps.failure = None
    await book.note([20001])
    assert set(maps.data or ()) == {"20001"}


async def test_without_the_right_nothing_is_held_up():
    maps, clock = Maps(), Clock()
    maps.failure = Forbidden(Status(code=403))
    book = resting(maps, clock)
    assert await book.load() == {}
    await book.note([20001])
    maps.failure = None
    await book.note([20002])
    assert maps.data is None


@pytest.mark.virtual_time
async def test_the_server_is_waited_for_before_a_port_is_given_away():
    maps, clock = Maps(), Clock()
    maps.failure = KubeError("away")
    task = asyncio.create_task(resting(maps, clock).load())
    await asyncio.sleep(60)
    assert not task.done()
    maps.failure = None
    assert await task == {}


async def test_foreign_entries_are_passed_over():
    maps, clock = Maps(), Clock()
    maps.data = {"web": "2030-01-01T00:00:00Z", "20001": "soon", "20002": "2030-01-01T00:00:00Z"}
    assert await resting(maps, clock).load() == {20002: 0.0}


# On servers


async def port_of(rig: Rig, name: str = "web") -> int:
    async def given() -> int:
        ports = (await rig.status(name)).get("resolverPorts") or [{}]
        return int(ports[0].get("resolverPort", 0))

    return int(await eventually(given))


async def delete(rig: Rig, name: str = "web") -> None:
    await rig.elastiservices.delete(name)

    async def gone() -> bool:
        return not [item async for item in rig.elastiservices.items()]

    await eventually(gone)


@everywhere_fast
@pytest.mark.timeout(180)
async def test_a_port_rests_through_a_restart(rig: Rig):
    await rig.web(replicas=0)
    async with rig.operator():
        await rig.becomes("Proxy")
        first = await port_of(rig)
        await delete(rig)
    async with rig.operator():
        await rig.elastiservice()
        await rig.becomes("Serve")
        assert await port_of(rig) != first


@everywhere_fast
@pytest.mark.timeout(180)
async def test_a_port_that_a_service_lost_rests_through_a_restart(rig: Rig):
    await rig.web(replicas=0)
    async with rig.operator():
        await rig.becomes("Proxy")
        first = await port_of(rig)
        ports = [{"name": "http", "port": 81, "targetPort": 8080}]
        await rig.cluster.services.patch("web", MergePatch({"spec": {"ports": ports}}))

        async def changed() -> bool:
            # What is published still is the Service's own, and it would have it back.
            published = (await rig.slice() or {}).get("ports") or [{}]
            return await port_of(rig) not in (0, first) and published[0].get("port") != first

        await eventually(changed)
    maps = rig.client.resource("v1/configmaps", namespace=RESOLVER_NAMESPACE)
    assert str(first) in (await maps.get(QUARANTINE_CONFIG_MAP))["data"]
    async with rig.operator():
        ports = [{"name": "http", "port": 80, "targetPort": 8080}]
        await rig.cluster.services.patch("web", MergePatch({"spec": {"ports": ports}}))

        async def settled() -> bool:
            status = await rig.status()
            return [port["port"] for port in status["resolverPorts"]] == [80]

        await eventually(settled)
        assert await port_of(rig) != first


async def tear_away(rig: Rig, name: str = "web") -> None:
    """Delete an ElastiService and let nobody do anything about it."""
    await rig.elastiservices.delete(name)
    with contextlib.suppress(NotFound):
        await rig.elastiservices.patch(name, MergePatch({"metadata": {"finalizers": None}}))


async def written(rig: Rig) -> set[int]:
    maps = rig.client.resource("v1/configmaps", namespace=RESOLVER_NAMESPACE)
    try:
        return {int(port) for port in (await maps.get(QUARANTINE_CONFIG_MAP))["data"]}
    except NotFound:
        return set()


async def test_the_port_of_one_that_was_torn_away_is_written_down_at_once(rig: Rig):
    await rig.web(replicas=0)
    async with rig.operator(engage_settle=60.0):
        await rig.becomes("Proxy")
        first = await port_of(rig)
        await tear_away(rig)

        async def noted() -> bool:
            return first in await written(rig)

        await eventually(noted)


async def test_the_port_of_one_deleted_without_a_leader_is_quarantined(rig: Rig):
    await rig.web(replicas=0)
    async with rig.operator():
        await rig.becomes("Proxy")
        first = await port_of(rig)
    await tear_away(rig)
    assert first not in await written(rig)
    # Some node may still send the Service's traffic there: its slice is.
    assert await rig.slice() is not None
    await rig.service("other")
    await rig.elastiservice("other")
    async with rig.operator():
        await port_of(rig, "other")
        assert first in await written(rig)


async def test_after_a_restart_an_older_objects_status_takes_no_port_that_is_served(rig: Rig):
    await rig.service("other")
    await rig.elastiservice("other")
    # Timestamps are in seconds, and this one is to be the younger.
    await asyncio.sleep(1.1)
    await rig.web(replicas=0)
    async with rig.operator():
        await rig.becomes("Proxy")
        first = await port_of(rig)
        await port_of(rig, "other")
    status = rig.elastiservices.subresource("status")
    forged = [{"name": "http", "port": 80, "resolverPort": first}]
    await status.patch("other", MergePatch({"status": {"resolverPorts": forged}}))
    async with rig.operator():

        async def corrected() -> bool:
            return await port_of(rig, "other") != first

        await eventually(corrected)
        assert await port_of(rig) == first


@everywhere_fast
@pytest.mark.timeout(180)
async def test_an_operator_without_the_right_works_all_the_same(rig: Rig, tmp_path: Path):
    account = await Account(rig, "without-configmaps").create()
    await account.grant(NAMESPACED_RULES, namespace=rig.namespace)
    own = (*LEASE_RULES, *RESOLVER_NAMESPACE_RULES)
    await account.grant(own, namespace=RESOLVER_NAMESPACE)
    await confined_operator(rig, tmp_path, rig.namespace)
    rig.config = await account.config(tmp_path)
    await rig.web(replicas=0)
    async with rig.operator():
        await rig.becomes("Proxy")
        await delete(rig)


@everywhere_fast
@pytest.mark.timeout(180)
async def test_whatever_port_status_ever_named_is_in_use_or_written_down(rig: Rig):
    """Ports change faster than they are looked at, so that every way to publish them is taken."""
    await rig.web(replicas=0)
    shown: set[int] = set()

    def note(_old: Any, es: ElastiService) -> None:
        shown.update(port.resolver_port for port in es.status.resolver_ports)

    factory = SharedInformerFactory(rig.client, namespace=rig.namespace)
    factory.informer(ELASTISERVICES, ElastiService).add_handler(on_update=note)
    async with factory.running(), rig.operator():
        await rig.becomes("Proxy")
        for number in range(40):
            ports = [{"name": "http", "port": 1000 + number, "targetPort": 8080}]
            await rig.cluster.services.patch("web", MergePatch({"spec": {"ports": ports}}))

        async def settled() -> list[int]:
            found = (await rig.status())["resolverPorts"]
            return [p["resolverPort"] for p in found] if found[0]["port"] == 1039 else []

        present = await eventually(settled)
        maps = rig.client.resource("v1/configmaps", namespace=RESOLVER_NAMESPACE)
        written = {int(port) for port in (await maps.get(QUARANTINE_CONFIG_MAP))["data"]}
        assert len(shown) > 2
        assert shown - set(present) <= written
