"""What the operator asks of the API server, and what it does not."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import pytest
from aiohttp import web
from tests.controllers.support import eventually
from tests.log_lines import capture_logs
from tests.operator.fakes import FakePrometheus
from tests.operator.keda import keda_on
from tests.operator.rig import Rig
from tests.operator.servers import USER

from devkube.apiserver.auth import UserInfo
from devkube.apiserver.calls import Attributes

pytestmark = [pytest.mark.timeout(120), pytest.mark.virtual_time]

WRITES = ("create", "update", "patch", "delete")


class Asked:
    """Notes what the operator asks for; allows nothing by itself."""

    def __init__(self) -> None:
        self.all: Counter[str] = Counter()

    async def authorize(self, user: UserInfo, attributes: Attributes) -> bool:
        if user.name == USER and attributes.is_resource:
            resource = "/".join(filter(None, (attributes.resource, attributes.subresource)))
            self.all[f"{attributes.verb} {resource}"] += 1
        return False

    @property
    def writes(self) -> dict[str, int]:
        """The writes so far, but for the lease and events."""
        return {
            what: count
            for what, count in self.all.items()
            if what.startswith(WRITES) and what.split()[1] not in ("leases", "events")
        }


@contextlib.contextmanager
def asked_of(rig: Rig) -> Iterator[Asked]:
    asked = Asked()
    server = rig.cluster._server
    assert server is not None
    authorizers = server.core.gate.authorizers
    authorizers.insert(0, asked)
    try:
        yield asked
    finally:
        authorizers.remove(asked)


async def all_are(rig: Rig, state: str, names: list[str]) -> None:
    for name in names:
        await rig.becomes(state, name, timeout=60)


async def test_an_adoption_takes_six_writes(rig: Rig) -> None:
    names = [f"web-{number}" for number in range(12)]
    for name in names:
        await rig.web(replicas=0, name=name)
    with asked_of(rig) as asked:
        async with rig.operator():
            await all_are(rig, "Proxy", names)

            async def published() -> bool:
                return all([await rig.addresses(name) for name in names])

            await eventually(published)

    assert asked.writes == {
        "patch elastiservices": 12,
        # The ports before the rest, since resolvers open them before they are sent anything.
        "patch elastiservices/status": 24,
        "create services": 12,
        "create endpointslices": 12,
        # What sleeps already is owned from now on.
        "patch deployments/scale": 12,
    }


async def test_a_quick_cycle_writes_status_twice_for_each_of_many(rig: Rig) -> None:
    names, cycles = [f"web-{number}" for number in range(2)], 2
    async with FakePrometheus().running() as prometheus:
        for name in names:
            triggers = [prometheus.trigger(name)]
            await rig.web(replicas=0, name=name, triggers=triggers, cooldownPeriod=3)
        async with rig.operator(release_settle=2.0, engage_settle=15.0) as operator:
            await all_are(rig, "Proxy", names)
            await eventually(lambda: _all_read(rig, names))
            with asked_of(rig) as asked:
                for _ in range(cycles):
                    await asyncio.gather(*(rig.wake(operator, name) for name in names))
                    await all_are(rig, "Serve", names)
                    await all_are(rig, "Proxy", names)
    assert asked.writes["patch elastiservices/status"] == 2 * len(names) * cycles


async def test_a_keda_trigger_is_one_watch_and_no_request(rig: Rig) -> None:
    async with keda_on(rig) as keda:
        keda.reports = False
        await keda.set_active(True)
        names = [f"web-{number}" for number in range(3)]
        triggers = [{"type": "keda", "metadata": {"scaledObject": "web"}}]
        with asked_of(rig) as asked:
            async with rig.operator(polling_interval=60.0) as operator:
                for name in names:
                    await rig.web(name=name, triggers=triggers)
                for name in names:
                    await rig.tells("MaySleep", "InUse", name)
                watches = operator.caches.manager.counts()
                assert watches["keda.sh/v1alpha1/scaledobjects"] == 1
                await asyncio.sleep(130)
                await keda.set_active(False)
                for name in names:
                    await rig.becomes("Proxy", name)
                await asyncio.sleep(90)
                await keda.set_active(True)
                # Sooner than the next round.
                for name in names:
                    await rig.becomes("Serve", name, timeout=5)
                # The first list tells whether there are ScaledObjects, the second is the watch's.
                assert asked.all["list scaledobjects"] <= 2
                assert asked.all["get scaledobjects"] == 0
                for name in names:
                    await rig.elastiservices.delete(name)

                async def closed() -> bool:
                    return "keda.sh/v1alpha1/scaledobjects" not in operator.caches.manager.counts()

                await eventually(closed, timeout=180)


async def _all_read(rig: Rig, names: list[str]) -> bool:
    found = [await rig.condition("TriggersHealthy", name) for name in names]
    return all(entry.get("status") == "True" for entry in found)


class HesitantPrometheus(FakePrometheus):
    """Answers only while the gate is open."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()
        self.gate.set()

    async def _query(self, request: web.Request) -> web.Response:
        await self.gate.wait()
        return await super()._query(request)


async def test_a_new_leader_writes_nothing_whether_triggers_answer_or_not(rig: Rig) -> None:
    async with HesitantPrometheus().running() as prometheus:
        await rig.web(replicas=0, name="asleep", triggers=[prometheus.trigger("asleep")])
        prometheus.answers["awake"] = [9.0]
        await rig.web(replicas=1, name="awake", triggers=[prometheus.trigger("awake")])

        async def is_reported() -> bool:
            return (await rig.condition("MaySleep", "awake")).get("reason") == "InUse"

        async with rig.operator():
            await all_are(rig, "Proxy", ["asleep"])
            await all_are(rig, "Serve", ["awake"])
            await eventually(is_reported)
        before = [await rig.status(name) for name in ("asleep", "awake")]
        prometheus.gate.clear()
        prometheus.queries.clear()
        with asked_of(rig) as asked, capture_logs() as told:
            async with rig.operator():
                await eventually(lambda: _has(told, "startup reconcile complete"))
                prometheus.gate.set()
                # Three rounds: whatever follows from the first one has been done.
                await eventually(lambda: _true(prometheus.queries.count("awake") >= 3))
        assert asked.writes == {}
        assert [await rig.status(name) for name in ("asleep", "awake")] == before


async def _has(told: Sequence[Mapping[str, object]], event: str) -> bool:
    return any(line["event"] == event for line in told)


async def _true(value: bool) -> bool:
    return value
