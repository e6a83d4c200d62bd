"""Many wake-ups at once: what is urgent goes first, over few connections."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from elasti.api.conditions import WakeCause
from elasti.api.types import (
    DependencyRef,
    ElastiService,
    ElastiServiceSpec,
    ElastiServiceStatus,
    LastWake,
    ScaleTargetRef,
)
from elasti.api.wire import WakeOutcome
from elasti.operator.autoscalers.base import Autoscalers
from elasti.operator.metrics import OperatorMetrics
from elasti.operator.model.state import StateStore
from elasti.operator.model.targets import ScaleTarget, ScaleView, UpdateObjInfo
from elasti.operator.pacing import DeferredWork
from elasti.operator.report.events import EventReporter
from elasti.operator.scale_handler import ScaleUp
from elasti.operator.waking.requests import WakeRequests
from elasti.operator.waking.waker import Waker
from elasti.operator.watch.directory import Directory
from kubeloop.aio.clock import SystemClock
from kubeloop.controller.reconcile import Request
from kubeloop.objects.meta import ObjectMeta
from kubeloop.objects.patches import MergePatch
from kubeloop.testing.virtual_time import VirtualClock

pytestmark = pytest.mark.virtual_time


class Server:
    """What a waker uses of a client and of scales; every request takes a tenth of a second."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.notes: list[Any] = []
        self.seen: list[ScaleView | None] = []
        self.open = self.most_open = 0
        self.hangs: set[str] = set()

    def resource(self, _resource: str) -> Server:
        return self

    def subresource(self, _name: str) -> Server:
        return self

    async def patch(self, name: str, patch: MergePatch, **_options: Any) -> None:
        self.notes.append(patch.content["status"])
        await self._request(f"note {name}")

    async def scale_up(
        self, target: ScaleTarget, minimum: int, *, seen: ScaleView | None, recreates: bool
    ) -> tuple[ScaleUp, ScaleView]:
        self.seen.append(seen)
        if target.namespace in self.hangs:
            await asyncio.Event().wait()
        await self._request(f"scale {target.name}")
        return ScaleUp.SCALED, ScaleView("u", minimum, "2")

    async def _request(self, what: str) -> None:
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        await asyncio.sleep(0.1)
        self.open -= 1
        self.done.append(what)


class Events:
    """A recorder that forgets."""

    def normal(self, *_event: object, **_options: object) -> None:
        return None


def directory_of(count: int, namespaces: tuple[str, ...], status: ElastiServiceStatus) -> Directory:
    directory = Directory()
    for number, namespace in itertools.product(range(count), namespaces):
        ref = ScaleTargetRef("apps/v1", "Deployment", f"web-{number}")
        meta = ObjectMeta(name=f"es-{number}", namespace=namespace, uid=f"u{number}-{namespace}")
        spec = ElastiServiceSpec(scale_target_ref=ref, service=f"svc-{number}")
        directory.put(ElastiService(metadata=meta, spec=spec, status=status))
    return directory


def waker_on(
    server: Server, count: int, *namespaces: str, status: ElastiServiceStatus | None = None
) -> WakeRequests:
    async def known(_target: ScaleTarget) -> UpdateObjInfo:
        return UpdateObjInfo(spec_replicas=0, uid="u", version="1")

    metrics = OperatorMetrics()
    waker = Waker(
        client=server,  # type: ignore[arg-type]  # all that is used of it
        scales=server,  # type: ignore[arg-type]
        metrics=metrics,
        reporter=EventReporter(Events()),  # type: ignore[arg-type]
        clock=SystemClock(),
        known=known,
    )
    return WakeRequests(
        waker=waker,
        directory=directory_of(count, namespaces or ("shop",), status or ElastiServiceStatus()),
        autoscalers=Autoscalers(server, ()),  # type: ignore[arg-type]
        metrics=metrics,
        is_synced=lambda: True,
        serves=lambda *_service: True,
    )


@contextlib.asynccontextmanager
async def leading(waker: WakeRequests, enqueue: Callable[[Request], None]) -> AsyncIterator[None]:
    """Lead with this replica, and know of no ElastiService."""
    with waker.waker.leading(StateStore(), enqueue):
        yield


async def test_of_many_all_are_scaled_before_anything_else_is_done():
    server = Server()
    looked: list[tuple[int, Request]] = []

    def look(request: Request) -> None:
        looked.append((len(server.done), request))

    async with waker_on(server, 100) as waker, leading(waker, look):
        replies = await asyncio.gather(*(waker.wake("shop", f"svc-{n}") for n in range(100)))
        assert {reply.outcome for reply in replies} == {WakeOutcome.SCALING}
        assert server.most_open == 32
        await asyncio.sleep(10)
    assert [what.split()[0] for what in server.done] == ["scale"] * 100 + ["note"] * 100
    assert sorted(looked) == sorted((100, Request("shop", f"es-{n}")) for n in range(100))


async def test_a_namespace_whose_targets_hang_keeps_no_other_from_waking():
    server = Server()
    server.hangs.add("stuck")
    loop = asyncio.get_running_loop()
    async with waker_on(server, 200, "stuck", "shop") as waker, asyncio.TaskGroup() as group:
        stuck = [group.create_task(waker.wake("stuck", f"svc-{n}")) for n in range(200)]
        await asyncio.sleep(0.1)
        began = loop.time()
        replies = await asyncio.gather(*(waker.wake("shop", f"svc-{n}") for n in range(100)))
        assert {reply.outcome for reply in replies} == {WakeOutcome.SCALING}
        # All places were taken, for half a second at most; then it goes as if nobody hung.
        assert loop.time() - began < 0.5 + 0.5
        assert not any(task.done() for task in stuck)
    assert {task.result().outcome for task in stuck} == {WakeOutcome.UNAVAILABLE}


async def test_what_the_cache_has_is_handed_on():
    server = Server()
    async with waker_on(server, 1) as waker:
        await waker.wake("shop", "svc-0")
    assert server.seen == [ScaleView("u", 0, "1")]


@pytest.mark.parametrize(
    ("noted", "written"),
    [("2026-01-01T00:00:00Z", True), ("2026-01-03T00:00:00Z", False)],
    ids=["of another sleep", "of this one"],
)
async def test_a_noted_wake_up_stays_until_its_sleep_is_counted(noted: str, *, written: bool):
    """Without a leader, and scaled to zero by another client after the wake-up that is noted."""
    server = Server()
    status = ElastiServiceStatus(
        released_since="2026-01-02T00:00:00Z", last_wake=LastWake(noted, WakeCause.REQUEST)
    )
    async with waker_on(server, 1, status=status) as waker:
        await waker.wake("shop", "svc-0", "10.0.0.7")
        await asyncio.sleep(10)
    (note,) = server.notes
    assert "lastScaledUpTime" in note
    assert ("lastWake" in note) is written


async def test_without_a_leader_a_dependency_delays_a_wake_up_and_does_not_prevent_it():
    server, loop = Server(), asyncio.get_running_loop()
    async with waker_on(server, 1) as waker:
        waker.waker.clock = VirtualClock()
        waker.serves = lambda *_service: False
        ref, meta = (
            ScaleTargetRef("apps/v1", "Deployment", "top"),
            ObjectMeta("top", "shop", uid="u"),
        )
        spec = ElastiServiceSpec(
            scale_target_ref=ref, service="top", depends_on=(DependencyRef("es-0"),)
        )
        waker.directory.put(ElastiService(metadata=meta, spec=spec))
        for _ in range(2):
            began, server.done = loop.time(), []
            while (await waker.wake("shop", "top")).outcome is WakeOutcome.WAITS:
                assert "scale top" not in server.done
                assert loop.time() - began < 46.0
                await asyncio.sleep(15.0)
            assert loop.time() - began >= 30.0
            assert "scale top" in server.done
            await asyncio.sleep(600.0)


async def test_a_stream_of_wake_ups_does_not_keep_the_rest_back_indefinitely():
    server = Server()
    looked: list[Request] = []
    async with waker_on(server, 100) as waker, leading(waker, looked.append):
        async with asyncio.TaskGroup() as group:
            for number in range(100):
                group.create_task(waker.wake("shop", f"svc-{number}"))
                await asyncio.sleep(0.05)
                assert number < 20 or looked
        assert len(looked) == 100


async def test_looks_let_a_crowd_go_first_and_wait_for_no_single_one():
    server = Server()
    loop = asyncio.get_running_loop()
    async with waker_on(server, 100) as waker, asyncio.TaskGroup() as group:
        await waker.waker.wait_calm()
        few = [group.create_task(waker.wake("shop", f"svc-{n}")) for n in range(3)]
        await asyncio.sleep(0.01)
        began = loop.time()
        await waker.waker.wait_calm()
        assert loop.time() == began
        await asyncio.gather(*few)
        for number in range(100):
            group.create_task(waker.wake("shop", f"svc-{number}"))
        await asyncio.sleep(0.01)
        began = loop.time()
        await waker.waker.wait_calm()
        assert 0.25 < loop.time() - began <= 0.5


async def test_looks_do_not_wait_for_those_that_hang():
    server = Server()
    server.hangs.add("stuck")
    loop = asyncio.get_running_loop()
    async with waker_on(server, 100, "stuck") as waker, asyncio.TaskGroup() as group:
        for number in range(100):
            group.create_task(waker.wake("stuck", f"svc-{number}"))
        await asyncio.sleep(1.0)
        began = loop.time()
        await waker.waker.wait_calm()
        assert loop.time() == began


async def test_callers_for_one_target_share_a_wake_up():
    server = Server()
    async with waker_on(server, 1) as waker:
        await asyncio.gather(*(waker.wake("shop", "svc-0") for _ in range(10)))
    assert server.done.count("scale web-0") == 1


async def test_work_that_was_put_off_is_done_in_order_and_once():
    done: list[int] = []
    afterwards = DeferredWork(longest=1.0)
    for number in range(3):
        afterwards.add(functools.partial(done.append, number))
    assert done == []
    await asyncio.sleep(1.1)
    assert done == [0, 1, 2]
    afterwards.add(lambda: done.append(9))
    afterwards.flush()
    await asyncio.sleep(2)
    assert done == [0, 1, 2, 9]
