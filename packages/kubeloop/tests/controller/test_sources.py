"""Controllers over real informers and a fake API server."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from kubeloop.controller.controller import Controller
from kubeloop.controller.queue.ratelimiters import ExponentialLimiter
from kubeloop.controller.reconcile import Request, Result
from kubeloop.controller.sources import LOW_PRIORITY, for_owner, map_func
from kubeloop.controller.writes import ConsistencyGuard
from kubeloop.informer.shared_informer import SharedInformer
from kubeloop.objects.gvk import GroupVersionKind, GroupVersionResource
from kubeloop.objects.meta import split_key
from kubeloop.testing.fake_source import FakeSource

pytestmark = pytest.mark.virtual_time

PODS = GroupVersionResource.parse("v1/pods")
DEPLOYMENT = GroupVersionKind.of("apps/v1", "Deployment")

Pods = SharedInformer[dict[str, Any]]


def make_pods() -> tuple[FakeSource[dict[str, Any]], Pods]:
    source: FakeSource[dict[str, Any]] = FakeSource(version=100)
    return source, SharedInformer(source, name="pods")


def make_controller(
    reconcile: Callable[[Request], Awaitable[Result | None]], **options: Any
) -> Controller:
    limiter = ExponentialLimiter[Request](base=1, cap=60)
    return Controller("pods", reconcile, rate_limiter=limiter, **options)


@contextlib.asynccontextmanager
async def running(informer: Pods, controller: Controller) -> AsyncIterator[None]:
    async with informer.running():
        task = asyncio.create_task(controller.run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def owned_by(source: FakeSource[Any], name: str, owner: str, uid: str) -> dict[str, Any]:
    made = source.build(name, uid=uid)
    reference = {"apiVersion": "apps/v1", "kind": "Deployment", "name": owner, "uid": owner}
    made["metadata"]["ownerReferences"] = [reference]
    return made


@pytest.mark.spec("C5")
@pytest.mark.parametrize("synced_before", [False, True], ids=["new informer", "synced informer"])
async def test_every_initial_object_is_mapped_before_the_first_reconcile(synced_before):
    source, informer = make_pods()
    for number in range(12_000):
        source.create(f"pod-{number}")
    mapped: list[str] = []
    mapped_at_first: list[int] = []

    def the_one(thing: dict[str, Any]) -> list[Request]:
        mapped.append(thing["metadata"]["name"])
        return [Request("", "one")]

    async def reconcile(_request: Request) -> None:
        mapped_at_first.append(len(mapped))

    controller = make_controller(reconcile)
    controller.watch(informer, mapping=map_func(the_one))
    async with informer.running():
        if synced_before:
            await informer.wait_synced()
        task = asyncio.create_task(controller.run())
        await asyncio.sleep(1)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert mapped_at_first == [12_000]


@pytest.mark.spec("C13")
async def test_change_overtakes_initial_objects_and_resync_has_low_priority():
    source: FakeSource[dict[str, Any]] = FakeSource()
    informer: Pods = SharedInformer(source, name="pods", resync=100)
    for number in range(5):
        source.create(f"old-{number}")
    seen: list[tuple[float, str]] = []

    async def reconcile(request: Request) -> None:
        seen.append((asyncio.get_running_loop().time(), request.name))
        await asyncio.sleep(1)

    controller = make_controller(reconcile)
    controller.watch(informer)
    async with running(informer, controller):
        await asyncio.sleep(1.5)
        source.create("new")
        await asyncio.sleep(97)
        assert [name for _, name in seen] == ["old-0", "old-1", "new", "old-2", "old-3", "old-4"]
        await asyncio.sleep(3)
        assert len(seen) > 6, "the resync asked for all of them again"
        assert controller.queue._ready.first_rank() == -LOW_PRIORITY


@pytest.mark.spec("C8")
async def test_a_deletion_found_by_a_relist_is_reconciled():
    source, informer = make_pods()
    source.create("stays")
    source.create("goes")
    seen: list[str] = []

    async def reconcile(request: Request) -> None:
        gone = informer.lister.find(request.namespace, request.name) is None
        seen.append(f"{request.name} {'gone' if gone else 'there'}")

    controller = make_controller(reconcile)
    controller.watch(informer)
    async with running(informer, controller):
        await asyncio.sleep(1)
        seen.clear()
        source.drop_watches(lose_pending=True)
        source.delete("goes")
        source.compact()
        await asyncio.sleep(60)
    assert "goes gone" in seen


@pytest.mark.spec("C8", "X6")
async def test_name_that_changed_uid_and_owner_reconciles_both_owners():
    source, informer = make_pods()
    source.put(owned_by(source, "pod", "old", "uid-1"))
    seen: list[str] = []

    async def reconcile(request: Request) -> None:
        seen.append(request.name)

    controller = make_controller(reconcile)
    controller.watch(informer, mapping=for_owner(DEPLOYMENT))
    async with running(informer, controller):
        await asyncio.sleep(1)
        assert seen == ["old"]
        source.drop_watches(lose_pending=True)
        source.delete("pod")
        source.put(owned_by(source, "pod", "new", "uid-2"))
        source.compact()
        await asyncio.sleep(60)
    assert seen == ["old", "old", "new"]


@pytest.mark.spec("C9")
async def test_with_guard_lagging_watch_does_not_make_reconciler_create_twice():
    source, informer = make_pods()
    guard = ConsistencyGuard(timeout=300)
    guard.follow(PODS, informer.store)
    created: list[str] = []

    async def reconcile(request: Request) -> Result:
        if len(informer.store) < 2:  # one more pod than there is
            made = source.create(f"made-{len(created)}")
            created.append(made["metadata"]["name"])
            guard.wrote(request, "uid", PODS, made["metadata"]["resourceVersion"])
        return Result(requeue_after=5)

    controller = make_controller(reconcile, consistency=guard)
    controller.watch(informer, mapping=map_func(lambda _pod: [Request("", "set")]))
    source.create("first")
    async with informer.running():
        await informer.wait_synced()
        source.stall_watches()
        task = asyncio.create_task(controller.run())
        await asyncio.sleep(100)
        source.stall_watches(stall=False)
        await asyncio.sleep(100)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert created == ["made-0"]
    assert len(guard) == 0


@pytest.mark.spec("C9")
async def test_bookmark_lets_write_outside_of_watched_slice_pass():
    source, informer = make_pods()
    guard = ConsistencyGuard(timeout=1e9)
    guard.follow(PODS, informer.store)
    web = Request("", "web")
    async with informer.running():
        await informer.wait_synced()
        source.bump(10)
        guard.wrote(web, "uid", PODS, str(source.version))
        await asyncio.sleep(1)
        assert guard.lagging(web) == (PODS,)
        source.send_bookmark()
        await asyncio.sleep(1)
        assert guard.lagging(web) == ()


@pytest.mark.spec("C9", "X11")
async def test_server_restored_from_backup_blocks_reconciles_only_for_timeout():
    source, informer = make_pods()
    source.create("web")
    backup = source.version
    guard = ConsistencyGuard(timeout=30)
    guard.follow(PODS, informer.store)
    times: list[float] = []

    async def reconcile(request: Request) -> None:
        times.append(asyncio.get_running_loop().time())
        if len(times) == 1:
            source.bump(5000)
            made = source.create("made")
            guard.wrote(request, "uid", PODS, made["metadata"]["resourceVersion"])
            source.restore(backup)

    controller = make_controller(reconcile, consistency=guard)
    controller.watch(informer, mapping=map_func(lambda _pod: [Request("", "set")]))
    async with running(informer, controller):
        await asyncio.sleep(20)
        source.update("web", spec=1)
        await asyncio.sleep(300)
        assert int(informer.store.version) < backup + 100, "the cache went back with the server"
    assert len(times) == 2
    assert 30 <= times[1] <= 60


@pytest.mark.parametrize("seed", range(8))
async def test_at_rest_last_reconcile_of_every_object_saw_final_state(seed):
    """The promise of level-triggered work, under random writes, faults and slow reconciles."""
    rand = random.Random(seed)
    source, informer = make_pods()
    saw: dict[str, Any] = {}

    async def reconcile(request: Request) -> Result | None:
        await asyncio.sleep(rand.choice([0, 0, 0.1, 3]))
        if rand.random() < 0.2:
            raise RuntimeError("some failure")
        pod = informer.lister.find(request.namespace, request.name)
        saw[request.name] = None if pod is None else pod["spec"]
        return Result(requeue_after=rand.choice([1, 20])) if rand.random() < 0.2 else None

    controller = make_controller(reconcile, workers=3)
    controller.watch(informer)
    async with running(informer, controller):
        for step in range(200):
            name = rand.choice("abcdef")
            there = source.key(name) in source.objects
            action = rand.random()
            if action < 0.1:
                source.drop_watches(lose_pending=True)
            elif action < 0.15:
                source.compact()
            elif there and action < 0.4:
                source.delete(name)
            elif there:
                source.update(name, spec=step)
            else:
                source.create(name, spec=step)
            await asyncio.sleep(rand.choice([0, 0.01, 1]))
        await asyncio.sleep(600)
    final = {split_key(key).name: obj["spec"] for key, obj in source.objects.items()}
    assert {name: spec for name, spec in saw.items() if spec is not None} == final
