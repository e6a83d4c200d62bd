from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.controller.election.lease_server import NO_FAULT, Fault, LeaseServer, lease

from kubeloop.controller.election.elector import LeaderCallbacks, LeaderElector
from kubeloop.controller.election.lease import ElectionConfig
from kubeloop.testing.virtual_time import VirtualTimeLoop

pytestmark = pytest.mark.virtual_time


def config(identity: str = "me", **changes: Any) -> ElectionConfig:
    return ElectionConfig(namespace="ns", name="lead", identity=identity, **changes)


class RecordedCallbacks:
    """Callbacks that record each call and its time."""

    def __init__(self) -> None:
        self.calls: list[tuple[float, str]] = []
        self.started = asyncio.Event()
        self.callbacks = LeaderCallbacks(
            on_started=self._work,
            on_stopped=lambda: self._note("stopped"),
            on_new_leader=lambda holder: self._note(f"leader {holder}"),
        )

    def _note(self, what: str) -> None:
        self.calls.append((asyncio.get_running_loop().time(), what))

    async def _work(self) -> None:
        self._note("work")
        self.started.set()
        try:
            await asyncio.Event().wait()
        finally:
            self._note("work ended")


def elector(
    server: LeaseServer,
    identity: str = "me",
    faults: Callable[[str], Fault] = lambda _verb: NO_FAULT,
    **changes: Any,
) -> LeaderElector:
    return LeaderElector(
        config=config(identity, **changes), lease=server.client(faults), rand=lambda: 0.0
    )


# As the operator has them.
RARELY: dict[str, Any] = {
    "lease_duration": 11,
    "renew_deadline": 8.0,
    "retry_period": 1.5,
    "renew_period": 3.0,
}


async def stop(task: asyncio.Task[None]) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.spec("L1")
def test_both_callbacks_and_the_lease_are_required() -> None:
    with pytest.raises(TypeError, match="on_started"):
        LeaderCallbacks(on_stopped=lambda: None)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="on_stopped"):
        LeaderCallbacks(on_started=asyncio.Event().wait)  # type: ignore[call-arg, arg-type]
    with pytest.raises(TypeError, match="lease"):
        LeaderElector(config=config())  # type: ignore[call-arg]


@pytest.mark.spec("L4")
async def test_a_leader_renews_without_reading() -> None:
    server, recorded = LeaseServer(), RecordedCallbacks()
    task = asyncio.create_task(elector(server).run(recorded.callbacks))
    await asyncio.sleep(4.5)
    assert server.log == ["get", "create", "update", "update"]
    await stop(task)


@pytest.mark.spec("L4", "L5")
async def test_renewal_that_conflicts_reads_and_writes_again_in_same_try() -> None:
    server, recorded = LeaseServer(), RecordedCallbacks()
    leading = elector(server)
    task = asyncio.create_task(leading.run(recorded.callbacks))
    await recorded.started.wait()
    assert server.lease is not None
    server.lease["metadata"]["labels"] = {"touched": "yes"}
    server.put(server.lease)
    await asyncio.sleep(4.5)
    assert server.log == ["get", "create", "update", "get", "update", "update"]
    assert server.lease["metadata"]["labels"] == {"touched": "yes"}
    assert leading.is_leader
    await stop(task)


@pytest.mark.spec("L2", "L6")
async def test_new_candidate_waits_full_lease_from_first_read() -> None:
    server, recorded = LeaseServer(lease("you")), RecordedCallbacks()
    await asyncio.sleep(100)
    task = asyncio.create_task(elector(server).run(recorded.callbacks))
    await recorded.started.wait()
    # Tries come every 2 s, and one when the lease ends.
    assert asyncio.get_running_loop().time() == 115
    assert server.holder == "me"
    await stop(task)


@pytest.mark.spec("L6")
async def test_tries_to_acquire_are_spread_by_jitter_of_120_percent() -> None:
    server, moments = LeaseServer(lease("you", duration=1000)), []

    def note(_verb: str) -> Fault:
        moments.append(asyncio.get_running_loop().time())
        return NO_FAULT

    numbers = iter([0.0, 0.5, 0.99, 0.0])
    candidate = LeaderElector(
        config=config(), lease=server.client(note), rand=lambda: next(numbers)
    )
    task = asyncio.create_task(candidate.run(RecordedCallbacks().callbacks))
    await asyncio.sleep(11)
    assert moments == pytest.approx([0, 2, 5.2, 9.576])
    await stop(task)


@pytest.mark.spec("L6")
async def test_failed_renewals_within_the_deadline_are_not_fatal() -> None:
    server, recorded = LeaseServer(), RecordedCallbacks()
    broken = False
    leading = elector(server, faults=lambda _verb: Fault(refused=broken))
    task = asyncio.create_task(leading.run(recorded.callbacks))
    await asyncio.sleep(2.5)
    broken = True
    await asyncio.sleep(7)
    broken = False
    await asyncio.sleep(20)
    assert leading.is_leader
    assert recorded.calls == [(0, "leader me"), (0, "work")]
    await stop(task)


@pytest.mark.spec("L6", "L7")
async def test_leadership_ends_when_the_renew_deadline_has_passed() -> None:
    server, recorded = LeaseServer(), RecordedCallbacks()
    broken = False
    leading = elector(server, faults=lambda _verb: Fault(refused=broken))
    task = asyncio.create_task(leading.run(recorded.callbacks))
    await asyncio.sleep(2.5)
    broken = True
    await task
    # The last renewal was sent at 2 s.
    assert recorded.calls[2:] == [(12, "stopped"), (12, "work ended")]
    assert not leading.is_leader


@pytest.mark.spec("L6")
async def test_a_server_that_hangs_ends_leadership_at_the_same_moment() -> None:
    server, recorded = LeaseServer(), RecordedCallbacks()
    hanging = False
    leading = elector(server, faults=lambda _verb: Fault(before=1000 if hanging else 0))
    task = asyncio.create_task(leading.run(recorded.callbacks))
    await asyncio.sleep(2.5)
    hanging = True
    await task
    assert recorded.calls[2:] == [(12, "stopped"), (12, "work ended")]
    await asyncio.sleep(1000)


@pytest.mark.spec("L6")
async def test_one_request_that_hangs_leaves_time_for_another() -> None:
    server, recorded = LeaseServer(), RecordedCallbacks()
    hangs = iter([0, 0, 1000])
    leading = elector(server, faults=lambda _verb: Fault(before=next(hangs, 0)))
    task = asyncio.create_task(leading.run(recorded.callbacks))
    await asyncio.sleep(30)
    assert leading.is_leader
    await stop(task)
    await asyncio.sleep(1000)


@pytest.mark.spec("L4", "L6")
async def test_a_leader_renews_rarely_and_tries_often_after_a_failure() -> None:
    server, recorded = LeaseServer(), RecordedCallbacks()
    loop, sent = asyncio.get_running_loop(), []

    def faults(verb: str) -> Fault:
        sent.append((round(loop.time() - began, 3), verb))
        return Fault(refused=8 < loop.time() - began < 11)

    began = loop.time()
    leading = elector(server, faults=faults, **RARELY)
    task = asyncio.create_task(leading.run(recorded.callbacks))
    await asyncio.sleep(17)
    updates = [at for at, verb in sent if verb == "update"]
    assert updates == [3.0, 6.0, 9.0, 10.5, 12.0, 15.0]
    assert leading.is_leader
    await stop(task)


@pytest.mark.spec("L6")
async def test_one_rare_renewal_that_hangs_leaves_time_for_another() -> None:
    server, recorded = LeaseServer(), RecordedCallbacks()
    hangs = iter([0, 0, 1000])
    leading = elector(server, faults=lambda _verb: Fault(before=next(hangs, 0)), **RARELY)
    task = asyncio.create_task(leading.run(recorded.callbacks))
    await asyncio.sleep(30)
    assert leading.is_leader
    await stop(task)
    await asyncio.sleep(1000)


async def test_a_leader_that_finds_another_holder_stops_at_once() -> None:
    server, recorded = LeaseServer(), RecordedCallbacks()
    task = asyncio.create_task(elector(server).run(recorded.callbacks))
    await recorded.started.wait()
    server.put(lease("you"))
    await task
    assert (2, "stopped") in recorded.calls
    assert server.holder == "you"


@pytest.mark.spec("L7")
async def test_on_stopped_is_called_on_every_exit() -> None:
    server, recorded = LeaseServer(lease("you", duration=1000)), RecordedCallbacks()
    task = asyncio.create_task(elector(server).run(recorded.callbacks))
    await asyncio.sleep(1)
    await stop(task)
    assert recorded.calls == [(0, "leader you"), (1, "stopped")]


@pytest.mark.spec("L7")
async def test_every_new_holder_is_reported_once() -> None:
    server, recorded = LeaseServer(lease("you")), RecordedCallbacks()
    task = asyncio.create_task(elector(server).run(recorded.callbacks))
    await asyncio.sleep(5)
    server.put(lease("them", renewed="r1"))
    await asyncio.sleep(30)
    leaders = [what for _, what in recorded.calls if what.startswith("leader")]
    assert leaders == ["leader you", "leader them", "leader me"]
    await stop(task)


@pytest.mark.spec("L7")
async def test_report_of_leader_may_be_async_and_may_fail(
    caplog: pytest.LogCaptureFixture,
) -> None:
    server, recorded = LeaseServer(), RecordedCallbacks()

    async def report(holder: str) -> None:
        raise ValueError(holder)

    callbacks = LeaderCallbacks(
        on_started=recorded.callbacks.on_started,
        on_stopped=recorded.callbacks.on_stopped,
        on_new_leader=report,
    )
    task = asyncio.create_task(elector(server).run(callbacks))
    await asyncio.sleep(5)
    assert not task.done()
    assert "new leader report" in caplog.text
    await stop(task)


@pytest.mark.spec("L7")
async def test_leadership_survives_returned_work_and_ends_with_failed_work() -> None:
    server = LeaseServer()

    async def returns() -> None:
        return

    async def fails() -> None:
        await asyncio.sleep(3)
        raise ValueError("broken work")

    leading = elector(server)
    callbacks = LeaderCallbacks(on_started=returns, on_stopped=lambda: None)
    task = asyncio.create_task(leading.run(callbacks))
    await asyncio.sleep(30)
    assert leading.is_leader
    await stop(task)
    with pytest.raises(ValueError, match="broken work"):
        await elector(server).run(LeaderCallbacks(on_started=fails, on_stopped=lambda: None))
    assert server.holder == ""


@pytest.mark.spec("L8")
async def test_cancelled_it_ends_work_first_and_then_frees_lease() -> None:
    server = LeaseServer()
    holders: list[str] = []

    async def slow_to_end() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(25)  # longer than the lease: it is renewed meanwhile
            holders.append(server.holder)

    leading = elector(server)
    callbacks = LeaderCallbacks(
        on_started=slow_to_end, on_stopped=lambda: holders.append("stopped")
    )
    task = asyncio.create_task(leading.run(callbacks))
    await asyncio.sleep(1)
    await stop(task)
    assert holders == ["me", "stopped"]
    assert server.log[-2:] == ["get", "update"]
    assert server.holder == ""


@pytest.mark.spec("L8")
async def test_a_lease_that_is_no_longer_ours_is_not_released() -> None:
    server, recorded = LeaseServer(), RecordedCallbacks()
    task = asyncio.create_task(elector(server).run(recorded.callbacks))
    await asyncio.sleep(1)
    server.put(lease("you"))
    await stop(task)
    assert server.log[-1] == "get"
    assert server.holder == "you"


@pytest.mark.spec("L8")
async def test_release_has_a_time_limit_of_its_own() -> None:
    server, recorded = LeaseServer(), RecordedCallbacks()
    hanging = False
    leading = elector(server, faults=lambda _verb: Fault(before=1000 if hanging else 0))
    task = asyncio.create_task(leading.run(recorded.callbacks))
    await asyncio.sleep(1)
    hanging = True
    await stop(task)
    assert asyncio.get_running_loop().time() == 11
    assert recorded.calls[-1] == (11, "stopped")
    await asyncio.sleep(1000)


@pytest.mark.spec("L8")
async def test_release_can_be_switched_off() -> None:
    server, recorded = LeaseServer(), RecordedCallbacks()
    task = asyncio.create_task(elector(server, release_on_cancel=False).run(recorded.callbacks))
    await asyncio.sleep(1)
    await stop(task)
    assert server.holder == "me"


@pytest.mark.spec("L8", "L3")
async def test_a_successor_takes_a_released_lease_at_its_next_try() -> None:
    server, first, second = LeaseServer(), RecordedCallbacks(), RecordedCallbacks()
    one = asyncio.create_task(elector(server, "one").run(first.callbacks))
    await first.started.wait()
    two = asyncio.create_task(elector(server, "two").run(second.callbacks))
    await asyncio.sleep(9)
    await stop(one)
    await second.started.wait()
    assert asyncio.get_running_loop().time() == 10
    await stop(two)


@pytest.mark.spec("L9")
async def test_is_leader_comes_from_last_write_and_ends_with_it() -> None:
    server, recorded = LeaseServer(), RecordedCallbacks()
    offset = 0.0
    loop = asyncio.get_running_loop()
    leading = LeaderElector(
        config=config(), lease=server.client(), monotonic=lambda: loop.time() + offset
    )
    assert not leading.is_leader
    task = asyncio.create_task(leading.run(recorded.callbacks))
    await recorded.started.wait()
    # It does not ask the server: somebody else in the lease goes unnoticed until the next try.
    server.put(lease("you"))
    assert leading.is_leader
    offset = 10.0
    assert not leading.is_leader
    await task


@pytest.mark.spec("L13")
async def test_a_loop_paused_past_the_deadline_stops_without_writing() -> None:
    server, recorded = LeaseServer(), RecordedCallbacks()
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    task = asyncio.create_task(elector(server).run(recorded.callbacks))
    await recorded.started.wait()
    await asyncio.sleep(0)
    loop.advance(60)
    await task
    assert server.log == ["get", "create"]
    assert recorded.calls[-2:] == [(60, "stopped"), (60, "work ended")]


@pytest.mark.spec("L13")
async def test_answer_that_was_handled_too_late_does_not_revive_leadership() -> None:
    server, recorded = LeaseServer(), RecordedCallbacks()
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    delay = 0.0
    leading = elector(server, faults=lambda _verb: Fault(after=delay))
    task = asyncio.create_task(leading.run(recorded.callbacks))
    await recorded.started.wait()
    delay = 1.0
    await asyncio.sleep(2.5)  # the renewal sent at 2 s is under way
    loop.advance(8)  # past the deadline at 10 s, before the one that the answer would set
    assert not leading.is_leader
    await task
    assert (10.5, "stopped") in recorded.calls


@pytest.mark.spec("L10")
async def test_health_check_fails_only_where_held_lease_is_long_over() -> None:
    server, recorded = LeaseServer(), RecordedCallbacks()
    offset = 0.0
    loop = asyncio.get_running_loop()
    leading = LeaderElector(
        config=config(), lease=server.client(), monotonic=lambda: loop.time() + offset
    )
    leading.check()
    task = asyncio.create_task(leading.run(recorded.callbacks))
    await recorded.started.wait()
    offset = 34.0
    leading.check(tolerance=20)
    offset = 36.0
    with pytest.raises(RuntimeError, match="not renewed for more than 35 s"):
        leading.check(tolerance=20)
    await task


@pytest.mark.spec("L7", "L8")
def test_cancelled_at_any_await_it_reports_once_without_leaks() -> None:
    async def cancel_after(turns: int) -> tuple[list[str], set[asyncio.Task[Any]], LeaseServer]:
        server, recorded = LeaseServer(), RecordedCallbacks()
        leading = elector(server, faults=lambda _verb: Fault(before=0.1, after=0.1))
        before = asyncio.all_tasks()
        task = asyncio.create_task(leading.run(recorded.callbacks))
        for _ in range(turns):
            await asyncio.sleep(0.01 if turns % 2 else 0)
        task.cancel()
        await asyncio.wait({task})
        assert task.cancelled()
        assert not leading.is_leader
        await asyncio.sleep(1)  # for requests that are still on their way
        return [what for _, what in recorded.calls], asyncio.all_tasks() - before, server

    for turns in range(1, 120):
        with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
            calls, left, server = runner.run(cancel_after(turns))
        assert left == set()
        assert calls.count("stopped") == 1
        assert calls[-1] == "stopped"
        assert calls.count("work") == calls.count("work ended")
        if "work" in calls:
            assert server.holder == ""


@pytest.mark.parametrize("offset", [1e-9, 5e-10, 1e6])
def test_what_rounding_leaves_of_lease_is_not_tried_on_in(offset: float) -> None:
    async def tries_until_lost(refused_from: float) -> int:
        loop, server, tries = asyncio.get_running_loop(), LeaseServer(), 0

        def fault(_verb: str) -> Fault:
            nonlocal tries
            tries += 1
            assert tries < 1_000, f"it tries without end at {loop.time()}"
            return Fault(refused=True) if loop.time() >= refused_from else NO_FAULT

        losing = LeaderElector(
            config=config("a"),
            lease=server.client(fault),
            monotonic=lambda: loop.time() + offset,
        )
        await losing.run(LeaderCallbacks(on_started=_nothing, on_stopped=lambda: None))
        return tries

    for moment in range(1, 120):
        with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
            assert runner.run(tries_until_lost(moment)) < moment + 20


# -- Two never lead at once -------------------------------------------------------------------

_faults = st.builds(
    Fault,
    before=st.sampled_from([0.0, 0.1, 3.0, 4.9, 20.0]),
    refused=st.booleans(),
    after=st.sampled_from([0.0, 0.1, 3.0, 4.9]),
    answer_lost=st.booleans(),
)
# What is wrong between one candidate and the server: from when, for how long, and how.
_outages = st.lists(
    st.tuples(st.floats(0, 150), st.sampled_from([1.0, 5.0, 12.0, 40.0]), _faults), max_size=8
)
_candidates = st.lists(
    st.tuples(
        _outages,
        st.floats(-1e6, 1e6),  # the wall clock's offset
        st.floats(0, 1e6),  # the monotonic clock's
        st.floats(0, 60),  # when it starts
        st.none() | st.floats(1, 200),  # when it is killed, without a word
    ),
    min_size=2,
    max_size=3,
)


class _OffsetClock:
    def __init__(self, offset: float) -> None:
        self._start = dt.datetime(2030, 1, 1, tzinfo=dt.UTC) + dt.timedelta(seconds=offset)

    def now(self) -> dt.datetime:
        return self._start + dt.timedelta(seconds=asyncio.get_running_loop().time())


async def _compete(candidates: list[Any]) -> list[tuple[float, tuple[str, ...]]]:
    """Run all candidates for 300 s; return the moments at which more than one led."""
    loop, server = asyncio.get_running_loop(), LeaseServer()
    electors: dict[str, LeaderElector] = {}
    wrong: list[tuple[float, tuple[str, ...]]] = []

    async def live(name: str, candidate: LeaderElector, start: float) -> None:
        await asyncio.sleep(start)
        electors[name] = candidate
        while True:
            await candidate.run(LeaderCallbacks(on_started=_nothing, on_stopped=lambda: None))

    async def watch() -> None:
        while loop.time() < 300:
            leaders = tuple(name for name, one in electors.items() if one.is_leader)
            if len(leaders) > 1:
                wrong.append((loop.time(), leaders))
            await asyncio.sleep(0.25)

    def candidate(name: str, entry: Any) -> LeaderElector:
        outages, wall, monotonic, _, death = entry

        def fault(_verb: str) -> Fault:
            now = loop.time()
            present = (fault for start, length, fault in outages if 0 <= now - start < length)
            return next(present, NO_FAULT)

        return LeaderElector(
            config=config(name, release_on_cancel=death is None),
            lease=server.client(fault),
            monotonic=lambda: loop.time() + monotonic,
            clock=_OffsetClock(wall),
        )

    lives = []
    for index, entry in enumerate(candidates):
        name, (*_, start, death) = f"c{index}", entry
        task = asyncio.create_task(live(name, candidate(name, entry), start))
        lives.append(task)
        if death is not None:
            loop.call_later(death, task.cancel)
    await watch()
    for task in lives:
        task.cancel()
    await asyncio.gather(*lives, return_exceptions=True)
    return wrong


async def _nothing() -> None:
    return


@pytest.mark.spec("L2", "L5", "L6")
@settings(max_examples=100, deadline=None)
@given(_candidates)
def test_two_candidates_never_lead_at_once(candidates: list[Any]) -> None:
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        assert runner.run(_compete(candidates)) == []


async def test_a_leader_knows_how_long_the_former_led() -> None:
    server = LeaseServer()
    first, second = elector(server, "first"), elector(server, "second")
    recorded = [RecordedCallbacks(), RecordedCallbacks()]
    leading = asyncio.create_task(first.run(recorded[0].callbacks))
    await recorded[0].started.wait()
    assert first.former_renewal == "", "there was none"
    await asyncio.sleep(100)
    await stop(leading)
    released = (server.lease or {})["spec"]["renewTime"]
    following = asyncio.create_task(second.run(recorded[1].callbacks))
    await recorded[1].started.wait()
    assert second.former_renewal == released
    await asyncio.sleep(100)
    assert second.former_renewal == released, "its own renewals are not the former's"
    await stop(following)
