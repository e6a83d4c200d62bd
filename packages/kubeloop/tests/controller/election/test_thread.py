"""Real threads and real time, therefore short leases; everything else is in test_elector.py."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable

import pytest
from tests.controller.election.lease_server import NO_FAULT, Fault, LeaseClient, LeaseServer, lease

from kubeloop.controller.election.elector import LeaderCallbacks
from kubeloop.controller.election.lease import ElectionConfig
from kubeloop.controller.election.thread import ElectionThread, LeaseFactory
from tests.waiting import eventually


def config(identity: str = "me", *, lease_seconds: int = 1) -> ElectionConfig:
    """Where the lease must not be lost, make it long enough for a machine with much else to do."""
    return ElectionConfig(
        namespace="ns",
        name="lead",
        identity=identity,
        lease_duration=lease_seconds,
        renew_deadline=0.9 * lease_seconds,
        retry_period=0.1,
    )


def factory(
    server: LeaseServer, faults: Callable[[str], Fault] = lambda _verb: NO_FAULT
) -> LeaseFactory:
    @contextlib.asynccontextmanager
    async def connect() -> AsyncIterator[LeaseClient]:
        yield server.client(faults)

    return connect


class RecordedCallbacks:
    def __init__(self) -> None:
        self.calls: list[str] = []
        self.threads: set[int] = set()
        self.started = asyncio.Event()
        self.heard = asyncio.Event()
        self.callbacks = LeaderCallbacks(
            on_started=self._work,
            on_stopped=lambda: self._note("stopped"),
            on_new_leader=self._hear,
        )

    def _hear(self, holder: str) -> None:
        self._note(f"leader {holder}")
        self.heard.set()

    def _note(self, what: str) -> None:
        self.calls.append(what)
        self.threads.add(threading.get_ident())

    async def _work(self) -> None:
        self._note("work")
        self.started.set()
        try:
            await asyncio.Event().wait()
        finally:
            self._note("work ended")


def election_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "leader election"]


async def stop(task: asyncio.Task[None]) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.spec("L13")
async def test_a_blocked_main_loop_does_not_lose_the_lease() -> None:
    server, mine, theirs = LeaseServer(), RecordedCallbacks(), RecordedCallbacks()
    election = ElectionThread(config=config(lease_seconds=2), lease=factory(server))
    rival = ElectionThread(config=config("rival", lease_seconds=2), lease=factory(server))
    leading = asyncio.create_task(election.run(mine.callbacks))
    await mine.started.wait()
    waiting = asyncio.create_task(rival.run(theirs.callbacks))
    await theirs.heard.wait()
    threading.Event().wait(2.5)  # blocks this loop, on purpose
    assert election.is_leader
    assert not rival.is_leader
    assert "work" not in theirs.calls
    assert mine.calls == ["leader me", "work"]
    await stop(waiting)
    await stop(leading)


@pytest.mark.spec("L13", "L7")
async def test_callbacks_run_on_the_loop_that_asked() -> None:
    server, recorded = LeaseServer(), RecordedCallbacks()
    task = asyncio.create_task(
        ElectionThread(config=config(), lease=factory(server)).run(recorded.callbacks)
    )
    await recorded.started.wait()
    assert len(election_threads()) == 1
    await stop(task)
    assert recorded.calls == ["leader me", "work", "work ended", "stopped"]
    assert recorded.threads == {threading.get_ident()}
    assert election_threads() == []


@pytest.mark.spec("L8", "L13")
async def test_cancelled_it_releases_after_the_work_has_ended() -> None:
    server = LeaseServer()
    holders: list[str] = []
    started = asyncio.Event()

    async def work() -> None:
        try:
            started.set()
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(2.2)  # longer than the lease
            holders.append(server.holder)

    callbacks = LeaderCallbacks(on_started=work, on_stopped=lambda: holders.append("stopped"))
    task = asyncio.create_task(
        ElectionThread(config=config(lease_seconds=2), lease=factory(server)).run(callbacks)
    )
    await started.wait()
    await stop(task)
    assert holders == ["me", "stopped"]
    assert server.holder == ""


@pytest.mark.spec("L13")
async def test_a_lost_lease_ends_the_work_and_the_run() -> None:
    server, recorded = LeaseServer(), RecordedCallbacks()
    broken = False
    election = ElectionThread(
        config=config(), lease=factory(server, lambda _verb: Fault(refused=broken))
    )
    task = asyncio.create_task(election.run(recorded.callbacks))
    await recorded.started.wait()
    broken = True
    await task
    assert recorded.calls == ["leader me", "work", "stopped", "work ended"]
    assert not election.is_leader
    assert election_threads() == []


@pytest.mark.spec("L13")
async def test_thread_that_hangs_loses_lease_on_side_of_work() -> None:
    server, recorded = LeaseServer(), RecordedCallbacks()
    wake = threading.Event()
    hang = False

    def faults(_verb: str) -> Fault:
        if hang:
            wake.wait(100)  # the election's loop is blocked
        return NO_FAULT

    election = ElectionThread(config=config(), lease=factory(server, faults))
    task = asyncio.create_task(election.run(recorded.callbacks))
    await recorded.started.wait()
    hang = True
    await eventually(lambda: "stopped" in recorded.calls, "the end of the work", timeout=60)
    assert not election.is_leader
    wake.set()
    await task
    assert recorded.calls == ["leader me", "work", "stopped", "work ended"]


async def test_stopping_a_candidate_notifies_it_and_leaves_no_thread() -> None:
    server, recorded = LeaseServer(lease("you", duration=100)), RecordedCallbacks()
    task = asyncio.create_task(
        ElectionThread(config=config(), lease=factory(server)).run(recorded.callbacks)
    )
    await recorded.heard.wait()
    await stop(task)
    assert recorded.calls == ["leader you", "stopped"]
    assert election_threads() == []


async def test_stopping_before_the_thread_has_begun_is_fine() -> None:
    server, recorded = LeaseServer(), RecordedCallbacks()
    task = asyncio.create_task(
        ElectionThread(config=config(), lease=factory(server)).run(recorded.callbacks)
    )
    await asyncio.sleep(0)
    await stop(task)
    assert recorded.calls[-1:] == ["stopped"]
    assert election_threads() == []


async def test_a_connection_error_is_raised_to_the_caller() -> None:
    recorded = RecordedCallbacks()

    @contextlib.asynccontextmanager
    async def broken() -> AsyncIterator[LeaseClient]:
        raise ValueError("no such kubeconfig")
        yield

    with pytest.raises(ValueError, match="no such kubeconfig"):
        await ElectionThread(config=config(), lease=broken).run(recorded.callbacks)
    assert recorded.calls == ["stopped"]


@pytest.mark.spec("L10")
async def test_health_check_can_be_asked_from_loop_of_work() -> None:
    server, recorded = LeaseServer(), RecordedCallbacks()
    election = ElectionThread(config=config(), lease=factory(server))
    election.check()
    task = asyncio.create_task(election.run(recorded.callbacks))
    await recorded.started.wait()
    election.check()
    with pytest.raises(RuntimeError, match="not renewed"):
        election.check(tolerance=-1.0)
    await stop(task)
