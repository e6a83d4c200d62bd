"""What an operator is killed in the midst of, and what must hold however often it was.

Every scenario prepares a namespace with the operator alive, arms the operator's death, lets something
begin, and waits for the one right end. In all of them the Service must never be dark: neither a ready
pod nor the resolver in its rotation.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeAlias

from tests.controllers.support import eventually
from tests.operator.crashing import Case, CrashTestbed, Point
from tests.operator.keda import KEDA, FakeKeda, keda_on
from tests.operator.recorder import Recorder

from elasti.api.names import FINALIZER, PAUSED, PAUSED_BY_US_ANNOTATION, private_service_name
from elasti.api.wire import ActivityReport
from kubeloop.aio.tasks import finish

Scenario: TypeAlias = Callable[[Case, Point | None], Awaitable[None]]
OURS = {PAUSED: "true", PAUSED_BY_US_ANNOTATION: "true"}
_PATIENCE = 120.0


async def park(case: Case, point: Point | None) -> None:
    """From an object that nobody has looked at, to a target that sleeps."""
    async with never_dark(case):
        await case.rig.web(triggers=[case.prometheus.trigger()])
        await pods_are_ready(case)
        case.operator.arm(point)
        await case.operator.start()
        await asleep(case)


async def keda_park(case: Case, point: Point | None) -> None:
    """The same, with KEDA to be paused first."""
    async with keda_on(case.rig) as keda, never_dark(case):
        await case.rig.web(triggers=[case.prometheus.trigger()], autoscaler=KEDA)
        await pods_are_ready(case)
        case.operator.arm(point)
        await case.operator.start()
        await asleep(case)
        assert await keda.annotations() == OURS


async def wake(case: Case, point: Point | None) -> None:
    """From a connection that waits, to pods that have all the traffic."""
    await case.rig.web(replicas=0)
    await parked(case)
    async with never_dark(case):
        case.operator.arm(point)
        async with somebody_waits(case):
            await awake(case)


async def keda_wake(case: Case, point: Point | None) -> None:
    """The same, with KEDA to be resumed."""
    async with keda_on(case.rig, **OURS) as keda:
        await case.rig.web(replicas=0, autoscaler=KEDA)
        await parked(case)
        async with never_dark(case):
            case.operator.arm(point)
            async with somebody_waits(case):
                await awake(case)
                await resumed(keda)


async def trigger_wake(case: Case, point: Point | None) -> None:
    """A wake-up that the leader decides on by itself."""
    await case.rig.web(replicas=0, triggers=[case.prometheus.trigger()])
    await parked(case)
    async with never_dark(case):
        case.operator.arm(point)
        case.prometheus.value = 9.0
        await awake(case)


async def delete(case: Case, point: Point | None) -> None:
    """The end of an ElastiService whose target sleeps, with KEDA paused."""
    async with keda_on(case.rig, **OURS) as keda:
        await case.rig.web(replicas=0, autoscaler=KEDA)
        await parked(case)
        async with never_dark(case):
            case.operator.arm(point)
            await case.rig.elastiservices.delete("web")
            await eventually(lambda: is_gone(case), timeout=_PATIENCE)
            await resumed(keda)


SCENARIOS: tuple[Scenario, ...] = (park, keda_park, wake, keda_wake, trigger_wake, delete)


async def count_writes(testbed: CrashTestbed, scenario: Scenario) -> int:
    """Play a scenario undisturbed; how many writes it takes."""
    async with testbed.case() as case:
        await scenario(case, None)
        return case.operator.counted


# What is waited for


@contextlib.asynccontextmanager
async def never_dark(case: Case) -> AsyncIterator[None]:
    async with Recorder(case.rig).running() as recorder:
        yield
        assert recorder.dark_moments() == []


@contextlib.asynccontextmanager
async def somebody_waits(case: Case) -> AsyncIterator[None]:
    """A resolver holds a connection, and asks for the wake-up until the block ends."""
    key = case.rig.namespace, "web"
    case.rig.resolver.reports[key] = ActivityReport(held=1, open=1, last_arrival_age=0.0)
    asking = asyncio.create_task(case.operator.ask(case.rig.namespace), name="resolver")
    try:
        yield
    finally:
        await finish([asking])


async def parked(case: Case) -> None:
    """The operator has looked at a target at zero, and has nothing more to do."""
    await case.operator.start()
    await case.operator.ready()
    await asleep(case)


async def asleep(case: Case) -> None:
    async def is_so() -> bool:
        rig = case.rig
        return (
            await rig.state() == "Proxy"
            and await rig.replicas() == 0
            and await rig.addresses() == [rig.resolver.shown]
            and await rig.cluster.get("services", private_service_name("web")) is not None
            and FINALIZER in (await rig.elastiservices.get("web"))["metadata"]["finalizers"]
        )

    await eventually(is_so, timeout=_PATIENCE)


async def awake(case: Case) -> None:
    async def is_so() -> bool:
        rig = case.rig
        return (
            await rig.state() == "Serve" and await rig.replicas() == 1 and await rig.slice() is None
        )

    await eventually(is_so, timeout=_PATIENCE)
    # Not known to a successor of who died between the scale and the note of it; it need not be,
    # since a successor watches a whole cooldown by itself before it lets anything sleep.
    assert case.operator.deaths or (await case.rig.status())["lastScaledUpTime"]


async def is_gone(case: Case) -> bool:
    rig = case.rig
    left = [item async for item in rig.elastiservices.items()]
    return (
        not left
        and await rig.replicas() == 1
        and await rig.slice() is None
        and await rig.cluster.get("services", private_service_name("web")) is None
    )


async def resumed(keda: FakeKeda) -> None:
    async def is_so() -> bool:
        return await keda.annotations() == {}

    await eventually(is_so, timeout=_PATIENCE)


async def pods_are_ready(case: Case) -> None:
    async def is_so() -> bool:
        slices = await case.rig.cluster.list("slices")
        return any(
            (endpoint.get("conditions") or {}).get("ready")
            for piece in slices
            for endpoint in piece.get("endpoints") or ()
        )

    await eventually(is_so, timeout=_PATIENCE)
