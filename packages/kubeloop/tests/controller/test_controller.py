from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from tests.controller.fake_informer import FakeInformer, added, deleted, obj, updated
from tests.controller.queue.queue_probe import now, settle

from kubeloop.client.errors import NotFound, Status, TooManyRequests
from kubeloop.controller.controller import Controller, SyncTimeout
from kubeloop.controller.manager.manager import Manager
from kubeloop.controller.predicates import generation_changed, labels_match
from kubeloop.controller.queue.priority_queue import PriorityQueue
from kubeloop.controller.queue.ratelimiters import ExponentialLimiter
from kubeloop.controller.reconcile import Outcome, Request, Result, TerminalError
from kubeloop.controller.sources import LOW_PRIORITY, SourceStopped, map_func
from kubeloop.controller.writes import ConsistencyGuard
from kubeloop.informer.handlers import Deleted
from kubeloop.objects.gvk import GroupVersionResource
from kubeloop.objects.meta import Key

pytestmark = pytest.mark.virtual_time

WEB = Request("default", "web")
PODS = GroupVersionResource.parse("v1/pods")


class RecordedMetrics:
    def __init__(self) -> None:
        self.outcomes: list[Outcome] = []
        self.seconds: list[float] = []
        self.peak = 0
        self.now_busy = 0

    def reconciled(self, outcome: Outcome, seconds: float) -> None:
        self.outcomes.append(outcome)
        self.seconds.append(seconds)

    def busy(self, workers: int) -> None:
        self.now_busy = workers
        self.peak = max(self.peak, workers)


class Script:
    """A reconciler that answers as told, the last answer for ever, and notes every call."""

    def __init__(self, *answers: Result | Exception | None) -> None:
        self._answers = list(answers)
        self.calls: list[tuple[float, str]] = []

    async def __call__(self, request: Request) -> Result | None:
        self.calls.append((now(), str(request)))
        answer = self._answers.pop(0) if len(self._answers) > 1 else (self._answers or [None])[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    @property
    def times(self) -> list[float]:
        return [time for time, _ in self.calls]

    @property
    def names(self) -> list[str]:
        return [name for _, name in self.calls]


def make(
    reconcile: Callable[[Request], Awaitable[Result | None]], **options: Any
) -> tuple[Controller, FakeInformer, RecordedMetrics]:
    """A controller over one informer, with a limiter of 1, 2, 4... seconds."""
    metrics = RecordedMetrics()
    limiter = ExponentialLimiter[Request](base=1, cap=60)
    controller = Controller("test", reconcile, rate_limiter=limiter, metrics=metrics, **options)
    informer = FakeInformer()
    controller.watch(informer)
    return controller, informer, metrics


@contextlib.asynccontextmanager
async def running(controller: Controller) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(controller.run())
    await settle()
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


# C1, C2, C3: what follows from an answer


@pytest.mark.spec("C1")
async def test_a_burst_of_changes_reconciles_the_key_once():
    script = Script()
    controller, informer, _ = make(script)
    async with running(controller):
        for version in "123":
            informer.tell(updated(obj("web"), obj("web", version=version)))
        informer.tell(deleted(obj("web")))
        await settle()
    assert script.calls == [(0, "default/web")]


@pytest.mark.spec("C2")
async def test_error_is_tried_again_later_each_time_until_it_succeeds():
    script = Script(RuntimeError("a"), RuntimeError("b"), RuntimeError("c"), None)
    controller, informer, metrics = make(script)
    async with running(controller):
        informer.add("web")
        await asyncio.sleep(100)
        assert controller.queue.retries(WEB) == 0, "success forgets the failures"
    assert script.times == [0, 1, 3, 7]
    assert metrics.outcomes == [Outcome.ERROR] * 3 + [Outcome.SUCCESS]


@pytest.mark.spec("C2")
async def test_a_terminal_error_is_not_retried_until_a_change():
    script = Script(TerminalError("spec.x is invalid"))
    controller, informer, metrics = make(script)
    async with running(controller):
        informer.add("web")
        await asyncio.sleep(1000)
        assert script.times == [0]
        informer.tell(updated(obj("web"), obj("web", version="2")))
        await settle()
    assert script.times == [0, 1000]
    assert metrics.outcomes == [Outcome.TERMINAL] * 2


@pytest.mark.spec("C2")
async def test_requeue_after_forgets_failures_and_comes_back_after_exactly_that():
    script = Script(
        RuntimeError("a"), RuntimeError("b"), Result(requeue_after=10), RuntimeError("c")
    )
    controller, informer, metrics = make(script)
    async with running(controller):
        informer.add("web")
        await asyncio.sleep(14.5)
    assert script.times == [0, 1, 3, 13, 14], "the failure at 13 waits 1 s again"
    assert metrics.outcomes[2] is Outcome.REQUEUE_AFTER


@pytest.mark.spec("C2")
async def test_requeue_after_wins_over_requeue():
    script = Script(Result(requeue=True, requeue_after=10), None)
    controller, informer, _ = make(script)
    async with running(controller):
        informer.add("web")
        await asyncio.sleep(100)
    assert script.times == [0, 10]


@pytest.mark.spec("C2")
async def test_requeue_is_rate_limited():
    script = Script(Result(requeue=True), Result(requeue=True), None)
    controller, informer, metrics = make(script)
    async with running(controller):
        informer.add("web")
        await asyncio.sleep(100)
    assert script.times == [0, 1, 3]
    assert metrics.outcomes == [Outcome.REQUEUE, Outcome.REQUEUE, Outcome.SUCCESS]


@pytest.mark.spec("C2")
async def test_a_change_during_backoff_is_reconciled_once_at_once():
    script = Script(Result(requeue_after=50), None)
    controller, informer, _ = make(script)
    async with running(controller):
        informer.add("web")
        await asyncio.sleep(5)
        informer.add("web")
        await asyncio.sleep(100)
    assert script.times == [0, 5]


async def test_a_delay_that_the_server_names_is_not_undercut():
    script = Script(
        TooManyRequests(Status(code=429), retry_after=30.0), RuntimeError("without a hint"), None
    )
    controller, informer, _ = make(script)
    async with running(controller):
        informer.add("web")
        await asyncio.sleep(100)
    assert script.times == [0, 30, 32]


@pytest.mark.spec("C3")
@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (RuntimeError("x"), LOW_PRIORITY),
        (Result(requeue=True), LOW_PRIORITY),
        (Result(requeue_after=1), LOW_PRIORITY),
        (Result(requeue=True, priority=7), 7),
        (Result(requeue_after=1, priority=7), 7),
    ],
)
async def test_priority_is_kept_on_requeue_unless_result_says_otherwise(answer, expected):
    controller, informer, _ = make(Script(answer))
    informer_task = asyncio.create_task(controller.run())
    await settle()
    informer.add("web", initial=True)
    await settle()
    assert controller.queue._timers.discard(WEB) == expected
    informer_task.cancel()
    await asyncio.gather(informer_task, return_exceptions=True)


# C4: failures


@pytest.mark.spec("C4")
async def test_a_reconcilers_bug_ends_no_worker(caplog):
    async def reconcile(request: Request) -> None:
        if request == WEB:
            _ = 1 // 0
        served.append(request.name)

    served: list[str] = []
    controller, informer, metrics = make(reconcile)
    async with running(controller):
        informer.add("web")
        informer.add("api")
        await settle()
    assert served == ["api"]
    assert metrics.outcomes == [Outcome.ERROR, Outcome.SUCCESS]
    assert "ZeroDivisionError" in caplog.text


@pytest.mark.spec("C4")
async def test_a_timeout_is_counted_as_one_and_tried_again():
    starts: list[float] = []

    async def reconcile(_request: Request) -> None:
        starts.append(now())
        await asyncio.sleep(1000)

    controller, informer, metrics = make(reconcile, timeout=5)
    async with running(controller):
        informer.add("web")
        await asyncio.sleep(6.5)
        assert starts == [0, 6]
        assert metrics.outcomes == [Outcome.TIMEOUT]
        assert metrics.seconds == [5]


@pytest.mark.spec("C4")
async def test_timeout_of_reconciler_itself_is_counted_as_error():
    controller, informer, metrics = make(Script(TimeoutError("upstream")), timeout=5)
    async with running(controller):
        informer.add("web")
        await settle()
    assert metrics.outcomes == [Outcome.ERROR]


async def test_answer_of_api_server_is_logged_without_traceback(caplog):
    error = NotFound(Status(message="no such pod", code=404))
    controller, informer, _ = make(Script(error))
    async with running(controller):
        informer.add("web")
        await settle()
    assert "reconcile of default/web failed, will be tried again: no such pod" in caplog.text
    assert caplog.records[0].exc_info is None


# C5, C6: the start


@pytest.mark.spec("C5")
async def test_no_reconcile_runs_before_all_handlers_are_synced():
    script = Script()
    controller, synced, _ = make(script)
    late = FakeInformer(synced=False)
    controller.watch(late)
    async with running(controller):
        for number in range(20):
            synced.add(f"a{number}", initial=True)
            late.add(f"b{number}", initial=True)
        await asyncio.sleep(60)
        assert script.calls == []
        late.sync()
        await settle()
        assert len(script.calls) == 40


@pytest.mark.spec("C5")
async def test_a_sync_timeout_at_start_names_the_watch():
    controller, _, _ = make(Script(), sync_timeout=120)
    late = FakeInformer(synced=False)
    controller.watch(late, name="pods of web")
    with pytest.raises(SyncTimeout, match="controller test: not synced after 120 s: pods of web"):
        await controller.run()
    assert now() == 120
    assert late.registrations[0].removed


@pytest.mark.spec("C5")
async def test_a_cancellation_during_the_sync_is_not_an_error(caplog):
    controller, _, _ = make(Script())
    late = FakeInformer(synced=False)
    controller.watch(late)
    async with running(controller) as task:
        await asyncio.sleep(10)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert late.registrations[0].removed
    assert caplog.text == ""


@pytest.mark.spec("C5")
async def test_a_start_learns_that_an_informer_stopped():
    controller, _, _ = make(Script())
    late = FakeInformer(synced=False)
    controller.watch(late, name="pods")
    asyncio.get_running_loop().call_later(3, late.stop)
    with pytest.raises(SourceStopped, match="informer of pods stopped"):
        await controller.run()
    assert now() == 3


class NotYetServed:
    """An informer that can be had from a moment on."""

    def __init__(self, from_time: float) -> None:
        self.informer = FakeInformer()
        self.asked: list[float] = []
        self._from_time = from_time

    async def __call__(self) -> FakeInformer:
        self.asked.append(now())
        if now() < self._from_time:
            raise NotFound(Status(message="no resource widgets in example.com/v1", code=404))
        return self.informer


@pytest.mark.spec("C6")
async def test_a_missing_kind_is_retried_every_ten_seconds():
    script = Script()
    controller, informer, _ = make(script)
    widgets = NotYetServed(25)
    controller.watch(widgets)
    async with running(controller):
        informer.add("early")
        await asyncio.sleep(29)
        assert script.calls == []
        await asyncio.sleep(2)
        widgets.informer.add("widget")
        await settle()
    assert widgets.asked == [0, 10, 20, 30]
    assert script.names == ["default/early", "default/widget"]


@pytest.mark.spec("C6")
async def test_a_missing_kind_fails_the_start_with_its_reason():
    controller, _, _ = make(Script(), sync_timeout=35)
    widgets = NotYetServed(1000)
    controller.watch(widgets, name="widgets")
    with pytest.raises(SyncTimeout, match=r"widgets \(no resource widgets in example.com/v1\)"):
        await controller.run()
    assert widgets.asked == [0, 10, 20, 30]
    assert now() == 35


async def test_a_bug_in_the_informer_function_ends_the_start():
    async def broken() -> FakeInformer:
        raise LookupError("typo")

    controller, informer, _ = make(Script())
    controller.watch(broken)
    with pytest.raises(LookupError):
        await controller.run()
    assert informer.registrations[0].removed


# C7, C8, C13: from notifications to requests


@pytest.mark.spec("C7")
async def test_the_predicates_of_a_watch_are_anded_before_the_mapping():
    mapped: list[str] = []

    def targets(thing: dict[str, Any]) -> list[Request]:
        mapped.append(thing["metadata"]["name"])
        return []

    controller, _, _ = make(Script())
    informer = FakeInformer()
    controller.watch(
        informer,
        mapping=map_func(targets),
        predicates=[labels_match("app=web"), generation_changed()],
    )
    web: dict[str, Any] = {"labels": {"app": "web"}}
    async with running(controller):
        informer.tell(added(obj("labelled", **web)))
        informer.tell(added(obj("other")))
        informer.tell(updated(obj("same", **web), obj("same", version="2", **web)))
        informer.tell(updated(obj("spec", **web), obj("spec", generation=2, **web)))
    assert mapped == ["labelled", "spec", "spec"]


@pytest.mark.spec("C8")
async def test_a_stale_delete_without_an_object_is_dropped(caplog):
    script = Script()
    controller, informer, _ = make(script)
    async with running(controller):
        informer.tell(deleted(obj("web"), stale=True))
        informer.tell(Deleted(Key("default/ghost"), None, stale=True))
        await settle()
    assert script.names == ["default/web"]
    assert "deletion of default/ghost came without an object" in caplog.text


@pytest.mark.spec("C13")
async def test_initial_objects_and_resyncs_have_low_priority():
    script = Script()
    controller, informer, _ = make(script)
    late = FakeInformer(synced=False)
    controller.watch(late)
    async with running(controller):
        informer.add("initial", initial=True)
        informer.tell(updated(obj("resync"), obj("resync")))
        informer.add("new")
        informer.tell(updated(obj("changed"), obj("changed", version="2")))
        informer.tell(deleted(obj("deleted")))
        late.sync()
        await settle()
    names = [name.removeprefix("default/") for name in script.names]
    assert names == ["new", "changed", "deleted", "initial", "resync"]


# C9: read your own writes


class FakeStore:
    version = "10"


@pytest.mark.spec("C9")
async def test_reconcile_waits_with_backoff_until_cache_shows_previous_writes():
    store = FakeStore()
    guard = ConsistencyGuard(timeout=60)
    guard.follow(PODS, store)
    calls: list[float] = []

    async def reconcile(request: Request) -> Result | None:
        calls.append(now())
        if len(calls) > 1:
            return None
        guard.wrote(request, "uid", PODS, "12")
        return Result(requeue_after=1)

    controller, informer, metrics = make(reconcile, consistency=guard)
    async with running(controller):
        informer.add("web")
        await asyncio.sleep(3)
        store.version = "12"
        await asyncio.sleep(100)
        assert controller.queue.retries(WEB) == 0
    assert calls == [0, 4], "held back at 1 and 2, let through at 4"
    assert metrics.outcomes == [
        Outcome.REQUEUE_AFTER,
        Outcome.LAGGING,
        Outcome.LAGGING,
        Outcome.SUCCESS,
    ]


@pytest.mark.spec("C9", "X11")
async def test_a_stale_cache_delays_a_reconcile_by_the_timeout():
    store = FakeStore()
    guard = ConsistencyGuard(timeout=30)
    guard.follow(PODS, store)
    script = Script()
    controller, informer, _ = make(script, consistency=guard)
    async with running(controller):
        guard.wrote(WEB, "uid", PODS, "5000")
        informer.add("web")
        await asyncio.sleep(100)
    assert script.times == [31], "tries at 0, 1, 3, 7, 15, 31"


# C17 and the workers


@pytest.mark.spec("C17")
async def test_a_stop_starts_no_reconcile_and_awaits_the_running_ones():
    log: list[str] = []

    async def reconcile(request: Request) -> None:
        log.append(f"start {request.name}")
        await asyncio.sleep(10)
        log.append(f"end {request.name}")

    controller, informer, metrics = make(reconcile, workers=2)
    async with running(controller) as task:
        for name in "abcd":
            informer.add(name)
        await asyncio.sleep(1)
        assert repr(controller).startswith(
            "<Controller test [2/2 busy] <PriorityQueue [open: 2 ready"
        )
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert log == ["start a", "start b", "end a", "end b"]
    assert now() == 10
    assert controller.queue.shutting_down
    assert informer.registrations[0].removed
    assert metrics.now_busy == 0


@pytest.mark.spec("C17")
async def test_second_cancellation_cancels_running_reconciles_and_waits_for_end():
    log: list[str] = []

    async def reconcile(_request: Request) -> None:
        try:
            await asyncio.sleep(1000)
        finally:
            await asyncio.sleep(2)
            log.append("cleaned up")

    controller, informer, _ = make(reconcile)
    async with running(controller) as task:
        informer.add("web")
        await asyncio.sleep(1)
        task.cancel()
        await asyncio.sleep(5)
        assert not task.done()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert log == ["cleaned up"]
    assert now() == 8


@pytest.mark.spec("C17")
async def test_a_second_start_is_refused():
    controller, _, _ = make(Script())
    async with running(controller):
        with pytest.raises(RuntimeError, match="controller test was started before"):
            await controller.run()
    with pytest.raises(RuntimeError, match="started before"):
        await controller.run()


@pytest.mark.spec("C17")
async def test_two_controllers_of_one_manager_cannot_have_the_same_name():
    manager = Manager()
    manager.add(Controller("pods", Script()))
    with pytest.raises(ValueError, match="'pods'"):
        manager.add(Controller("pods", Script()))


async def test_workers_run_in_parallel_but_never_on_one_object():
    running_now: list[str] = []

    async def reconcile(request: Request) -> None:
        assert request.name not in running_now
        running_now.append(request.name)
        await asyncio.sleep(1)
        running_now.remove(request.name)

    controller, informer, metrics = make(reconcile, workers=3)
    async with running(controller):
        for _ in range(20):
            for name in "abcde":
                informer.add(name)
            await asyncio.sleep(0.3)
    assert metrics.peak == 3
    assert set(metrics.outcomes) == {Outcome.SUCCESS}


async def test_reconciles_that_never_wait_let_others_have_the_loop():
    ticks: list[int] = []
    controller, informer, metrics = make(Script())
    async with running(controller):
        for number in range(5000):
            informer.add(str(number))

        async def tick() -> None:
            while len(metrics.outcomes) < 5000:
                ticks.append(len(metrics.outcomes))
                await asyncio.sleep(0)

        await tick()
    assert len(ticks) > 3


async def test_failure_of_controller_itself_ends_run_and_all_workers():
    class Broken(RecordedMetrics):
        def reconciled(self, outcome: Outcome, seconds: float) -> None:
            raise LookupError("metrics are broken")

    controller = Controller("test", Script(), workers=3, metrics=Broken())
    informer = FakeInformer()
    controller.watch(informer)
    async with running(controller) as task:
        informer.add("web")
        with pytest.raises(LookupError):
            await task
    assert len(asyncio.all_tasks()) == 1


# What standbys need


@pytest.mark.spec("C16")
async def test_a_warm_controller_fills_its_queue_before_it_runs():
    script = Script()
    controller, informer, _ = make(script)
    await controller.warm_up()
    await controller.warm_up()
    informer.add("web", initial=True)
    assert len(controller.queue) == 1
    async with running(controller):
        assert script.names == ["default/web"]
    assert len(informer.registrations) == 1


@pytest.mark.spec("C16")
async def test_a_watch_added_later_starts_at_once():
    script = Script()
    controller, _, _ = make(script)
    informer = FakeInformer()
    async with running(controller):
        controller.watch(informer)
        informer.add("web")
        await settle()
        with pytest.raises(RuntimeError, match="needs an informer"):
            controller.watch(NotYetServed(0))
    assert script.names == ["default/web"]
    assert informer.registrations[0].removed


@pytest.mark.spec("C16", "C17")
async def test_manager_warms_controller_up_runs_it_and_lets_reconcile_finish():
    log: list[str] = []

    async def reconcile(request: Request) -> None:
        log.append(f"start {request.name}")
        await asyncio.sleep(10)
        log.append(f"end {request.name}")

    controller, informer, _ = make(reconcile)
    manager = Manager(grace=30)
    manager.add(controller, warm=True)
    run = asyncio.create_task(manager.run())
    await settle()
    informer.add("a")
    informer.add("b")
    await asyncio.sleep(1)
    manager.stop()
    await run
    assert log == ["start a", "end a"]
    assert now() == 10
    assert len(informer.registrations) == 1
    assert informer.registrations[0].removed


async def test_warm_controller_that_never_ran_leaves_informers_when_closed():
    controller, informer, _ = make(Script())
    await controller.warm_up()
    await controller.close()
    assert informer.registrations[0].removed


async def test_a_controller_can_have_a_queue_of_its_own():
    queue: PriorityQueue[Request] = PriorityQueue()
    script = Script()
    controller = Controller("test", script, queue=queue)
    async with running(controller):
        queue.add(WEB)
        await settle()
    assert script.names == ["default/web"]


@pytest.mark.parametrize(
    "options",
    [{"workers": 0}, {"queue": PriorityQueue(), "rate_limiter": ExponentialLimiter()}],
)
def test_options_that_make_no_sense_are_refused(options):
    with pytest.raises(ValueError, match="controller test"):
        Controller("test", Script(), **options)
