from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from tests.controller.election.lease_server import Fault, LeaseServer

from kubeloop.controller.election.elector import LeaderCallbacks, LeaderElector
from kubeloop.controller.election.lease import ElectionConfig
from kubeloop.controller.manager.manager import (
    GracePeriodExpired,
    LeaderElectionLost,
    Manager,
    run_until_signal,
)
from kubeloop.controller.manager.runnables import LAST_TO_STOP, STOP_ORDER, Group
from kubeloop.testing.virtual_time import VirtualTimeLoop

pytestmark = pytest.mark.virtual_time


class Diary:
    """What happened, in order."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def runnable(self, name: str, *, ready_after: float = 0.0, ends_after: float = 0.0) -> Probe:
        return Probe(self, name, ready_after, ends_after)


class Probe:
    """A runnable that keeps a diary; it takes its time to be ready, and to end."""

    def __init__(self, diary: Diary, name: str, ready_after: float, ends_after: float) -> None:
        self.name = name
        self._diary = diary
        self._ready_after = ready_after
        self._ends_after = ends_after
        self._ready = asyncio.Event()

    async def run(self) -> None:
        self._note("starts")
        try:
            await asyncio.sleep(self._ready_after)
            self._ready.set()
            await asyncio.Event().wait()
        finally:
            self._note("stops")
            await asyncio.sleep(self._ends_after)
            self._note("stopped")

    async def wait_until_ready(self) -> None:
        await self._ready.wait()
        self._note("ready")

    def _note(self, what: str) -> None:
        self._diary.lines.append(f"{self.name} {what}")


class FakeElection:
    """Elected and deposed by the test."""

    def __init__(self, diary: Diary | None = None) -> None:
        self._diary = diary
        self._campaigning = asyncio.Event()
        self._lost = asyncio.Event()
        self._won = asyncio.Event()
        self.is_leader = False

    def check(self) -> None:
        pass

    async def win(self) -> None:
        await self._campaigning.wait()
        self.is_leader = True
        self._won.set()
        await settle()

    def lose(self) -> None:
        self.is_leader = False
        self._lost.set()

    async def run(self, callbacks: LeaderCallbacks) -> None:
        self._lost.clear()
        self._won.clear()
        self._campaigning.set()
        try:
            await self._won.wait()
            await callbacks.on_started()
            await self._lost.wait()
        finally:
            self.is_leader = False
            self._campaigning.clear()
            if self._diary is not None:
                self._diary.lines.append("lease released")
            callbacks.on_stopped()


async def settle() -> None:
    await asyncio.sleep(0.001)


async def stop(manager: Manager, task: asyncio.Task[None]) -> None:
    manager.stop()
    await task


async def forever() -> None:
    await asyncio.Event().wait()


def failing(error: Exception, *, after: float = 0.0) -> Callable[[], Coroutine[Any, Any, None]]:
    async def run() -> None:
        await asyncio.sleep(after)
        raise error

    return run


@pytest.mark.spec("C14", "C15")
def test_every_group_starts_once_and_stops_once() -> None:
    stopped = [group for stage in STOP_ORDER for group in stage] + list(LAST_TO_STOP)
    assert sorted(stopped, key=lambda g: g.value) == sorted(Group, key=lambda g: g.value)


@pytest.mark.spec("C14")
async def test_groups_start_in_order_each_when_one_before_is_ready() -> None:
    diary, election = Diary(), FakeElection()
    manager = Manager(election=election)
    for group in reversed(Group):
        manager.add(diary.runnable(group.value, ready_after=1), group=group)
    task = asyncio.create_task(manager.run())
    await asyncio.sleep(100)
    started = [line for line in diary.lines if line.endswith(("starts", "ready"))]
    names = ["recorders", "servers", "webhooks", "caches", "others", "warmup"]
    assert started == [f"{name} {what}" for name in names for what in ("starts", "ready")]
    await election.win()
    assert diary.lines[-1] == "leader starts"
    await stop(manager, task)


@pytest.mark.spec("C14")
async def test_nothing_else_starts_before_the_caches_are_synced() -> None:
    diary = Diary()
    manager = Manager()
    manager.add(diary.runnable("controller"))
    manager.add(diary.runnable("helper"), group=Group.OTHERS)
    manager.add(diary.runnable("cache", ready_after=50), group=Group.CACHES)
    task = asyncio.create_task(manager.run())
    await asyncio.sleep(49)
    assert diary.lines == ["cache starts"]
    await asyncio.sleep(2)
    assert diary.lines[1:3] == ["cache ready", "helper starts"]
    assert "controller starts" in diary.lines
    await stop(manager, task)


@pytest.mark.spec("C15")
async def test_groups_stop_in_order_and_lease_goes_before_recorder() -> None:
    diary = Diary()
    election = FakeElection(diary)
    manager = Manager(election=election)
    for group in Group:
        manager.add(diary.runnable(group.value, ends_after=1), group=group)
    task = asyncio.create_task(manager.run())
    await election.win()
    diary.lines.clear()
    await stop(manager, task)
    assert sorted(diary.lines[:2]) == ["others stops", "warmup stops"]
    assert sorted(diary.lines[2:4]) == ["others stopped", "warmup stopped"]
    assert diary.lines[4:] == [
        "leader stops", "leader stopped",
        "caches stops", "caches stopped",
        "webhooks stops", "webhooks stopped",
        "servers stops", "servers stopped",
        "lease released",
        "recorders stops", "recorders stopped",
    ]  # fmt: skip
    assert asyncio.get_running_loop().time() == pytest.approx(6, abs=0.1)


@pytest.mark.spec("C15")
async def test_a_manager_that_stops_is_no_longer_elected() -> None:
    diary, election = Diary(), FakeElection()
    manager = Manager(election=election)
    manager.add(diary.runnable("leader"))
    manager.add(diary.runnable("slow", ends_after=10), group=Group.OTHERS)
    task = asyncio.create_task(manager.run())
    await asyncio.sleep(1)
    manager.stop()
    await asyncio.sleep(1)
    await election.win()
    await task
    assert not any(line.startswith("leader") for line in diary.lines)


@pytest.mark.spec("C15")
async def test_runnables_that_exceed_the_grace_period_are_named() -> None:
    diary = Diary()
    manager = Manager(grace=30)
    manager.add(diary.runnable("stubborn", ends_after=1000))
    manager.add(diary.runnable("server"), group=Group.SERVERS)
    task = asyncio.create_task(manager.run())
    await asyncio.sleep(1)
    manager.stop()
    with pytest.raises(GracePeriodExpired, match="30 s after the stop: stubborn") as caught:
        await task
    assert caught.value.names == ("stubborn",)
    assert asyncio.get_running_loop().time() == pytest.approx(31, abs=0.1)
    assert "server stopped" in diary.lines
    await settle()


@pytest.mark.spec("C15")
async def test_the_default_grace_is_30_seconds() -> None:
    diary = Diary()
    manager = Manager()
    manager.add(diary.runnable("stubborn", ends_after=29.5))
    task = asyncio.create_task(manager.run())
    await asyncio.sleep(1)
    await stop(manager, task)
    assert diary.lines[-1] == "stubborn stopped"


@pytest.mark.spec("C15")
async def test_without_grace_nothing_is_waited_for() -> None:
    diary = Diary()
    manager = Manager(grace=0)
    manager.add(diary.runnable("stubborn", ends_after=1000))
    task = asyncio.create_task(manager.run())
    await asyncio.sleep(1)
    await stop(manager, task)
    assert asyncio.get_running_loop().time() == 1
    assert "stubborn stops" in diary.lines
    await settle()


@pytest.mark.spec("C15")
async def test_a_negative_grace_waits_indefinitely() -> None:
    diary = Diary()
    manager = Manager(grace=-1)
    manager.add(diary.runnable("stubborn", ends_after=100_000))
    task = asyncio.create_task(manager.run())
    await asyncio.sleep(1)
    await stop(manager, task)
    assert diary.lines[-1] == "stubborn stopped"


@pytest.mark.spec("C15")
async def test_a_lost_lease_is_the_end_and_gives_no_grace() -> None:
    diary, election = Diary(), FakeElection()
    manager = Manager(election=election)
    manager.add(diary.runnable("leader", ends_after=10))
    manager.add(diary.runnable("server", ends_after=10), group=Group.SERVERS)
    task = asyncio.create_task(manager.run())
    await election.win()
    began = asyncio.get_running_loop().time()
    election.lose()
    with pytest.raises(LeaderElectionLost, match="leader election lost"):
        await task
    assert asyncio.get_running_loop().time() == began
    assert {"leader stops", "server stops"} <= set(diary.lines)
    await settle()


@pytest.mark.spec("C15")
async def test_lost_lease_may_mean_standby_while_everything_else_goes_on() -> None:
    diary, election = Diary(), FakeElection()
    manager = Manager(election=election, on_lost="standby")
    manager.add(lambda: diary.runnable("leader", ends_after=5).run())
    manager.add(diary.runnable("server"), group=Group.SERVERS)
    task = asyncio.create_task(manager.run())
    await election.win()
    assert manager.is_leader
    election.lose()
    await settle()
    assert not manager.is_leader
    # It is told to end now: there is no "stopped", which would have come 5 s later.
    assert diary.lines[-1] == "leader stops"
    await asyncio.sleep(10)
    await election.win()
    leader = [line for line in diary.lines if line.startswith("leader")]
    assert leader == ["leader starts", "leader stops", "leader starts"]
    assert "server stops" not in diary.lines
    await stop(manager, task)


@pytest.mark.spec("C15")
async def test_a_leader_with_unfinished_work_does_not_become_standby() -> None:
    diary, election = Diary(), FakeElection()
    manager = Manager(election=election, on_lost="standby", grace=3)

    async def deaf() -> None:
        while True:
            try:
                await asyncio.sleep(7)
                return
            except asyncio.CancelledError:
                diary.lines.append("not now")

    manager.add(deaf)
    task = asyncio.create_task(manager.run())
    await election.win()
    election.lose()
    with pytest.raises(GracePeriodExpired, match="deaf"):
        await task
    await asyncio.sleep(10)


async def test_elected_and_deposed_in_one_breath_starts_nothing() -> None:
    diary, election = Diary(), FakeElection()
    manager = Manager(election=election, on_lost="standby")
    manager.add(diary.runnable("leader"))
    task = asyncio.create_task(manager.run())
    await settle()
    election.is_leader = True
    election._won.set()
    election.lose()
    await asyncio.sleep(1)
    assert diary.lines == []
    await stop(manager, task)


@pytest.mark.spec("C15")
async def test_the_real_election_works_the_same_way() -> None:
    diary, server = Diary(), LeaseServer()
    broken = False
    config = ElectionConfig(namespace="ns", name="lead", identity="me")
    client = server.client(lambda _verb: Fault(refused=broken))
    manager = Manager(election=LeaderElector(config=config, lease=client))
    manager.add(diary.runnable("leader"))
    task = asyncio.create_task(manager.run())
    await asyncio.sleep(3)
    assert diary.lines == ["leader starts", "leader ready"]
    broken = True
    with pytest.raises(LeaderElectionLost):
        await task
    # Renewed at 2 s, lost 10 s later.
    assert asyncio.get_running_loop().time() == 12
    await settle()
    assert diary.lines[2:] == ["leader stops", "leader stopped"]


@pytest.mark.spec("C15")
async def test_lease_is_released_only_after_leaders_work_is_done() -> None:
    server, holders = LeaseServer(), []
    config = ElectionConfig(namespace="ns", name="lead", identity="me")
    manager = Manager(election=LeaderElector(config=config, lease=server.client()))

    async def work() -> None:
        try:
            await forever()
        finally:
            await asyncio.sleep(20)
            holders.append(server.holder)

    manager.add(work)
    task = asyncio.create_task(manager.run())
    await asyncio.sleep(1)
    await stop(manager, task)
    assert holders == ["me"]
    assert server.holder == ""


class Warm:
    """Something that warms up, as a controller does."""

    name = "warm"

    def __init__(self, diary: Diary) -> None:
        self._diary = diary

    async def warm_up(self) -> None:
        self._diary.lines.append("warm up")

    async def close(self) -> None:
        self._diary.lines.append("close")

    async def run(self) -> None:
        self._diary.lines.append("run")
        await forever()


@pytest.mark.spec("C16")
async def test_a_standby_warms_up_and_works_when_elected() -> None:
    diary, election = Diary(), FakeElection()
    manager = Manager(election=election)
    manager.add(Warm(diary), warm=True)
    task = asyncio.create_task(manager.run())
    await asyncio.sleep(10)
    assert diary.lines == ["warm up"]
    await election.win()
    assert diary.lines == ["warm up", "run"]
    await stop(manager, task)
    assert diary.lines == ["warm up", "run", "close"]


@pytest.mark.spec("C16")
async def test_what_is_added_warm_later_warms_up_at_once() -> None:
    diary, election = Diary(), FakeElection()
    manager = Manager(election=election)
    task = asyncio.create_task(manager.run())
    await asyncio.sleep(1)
    manager.add(Warm(diary), warm=True)
    await settle()
    assert diary.lines == ["warm up"]
    await stop(manager, task)
    assert diary.lines == ["warm up", "close"]


async def test_what_cannot_warm_up_is_refused() -> None:
    with pytest.raises(TypeError, match="forever cannot warm up"):
        Manager().add(forever, warm=True)


async def test_without_an_election_the_leaders_group_starts_by_itself() -> None:
    diary = Diary()
    manager = Manager()
    manager.add(diary.runnable("leader"))
    task = asyncio.create_task(manager.run())
    await settle()
    assert diary.lines == ["leader starts", "leader ready"]
    assert manager.is_leader
    await stop(manager, task)


async def test_a_failure_stops_everything_in_order_and_is_raised() -> None:
    diary = Diary()
    manager = Manager()
    manager.add(diary.runnable("server", ends_after=3), group=Group.SERVERS)
    manager.add(failing(ValueError("broken"), after=2))
    with pytest.raises(ValueError, match="broken"):
        await manager.run()
    assert asyncio.get_running_loop().time() == 5
    assert diary.lines[-1] == "server stopped"


async def test_a_failure_while_something_else_gets_ready_ends_the_start() -> None:
    diary = Diary()
    manager = Manager()
    manager.add(failing(ValueError("no port"), after=5), group=Group.SERVERS)
    manager.add(diary.runnable("cache", ready_after=1000), group=Group.CACHES)
    with pytest.raises(ValueError, match="no port"):
        await manager.run()
    assert asyncio.get_running_loop().time() == 5


async def test_a_failure_before_it_is_ready_is_raised_too() -> None:
    class Broken:
        async def run(self) -> None:
            raise ValueError("cannot sync")

        async def wait_until_ready(self) -> None:
            await forever()

    manager = Manager()
    manager.add(Broken(), group=Group.CACHES)
    with pytest.raises(ValueError, match="cannot sync"):
        await manager.run()


async def test_a_failed_election_is_raised() -> None:
    class Broken(FakeElection):
        async def run(self, callbacks: LeaderCallbacks) -> None:
            raise ValueError("no such lease")

    with pytest.raises(ValueError, match="no such lease"):
        await Manager(election=Broken()).run()


async def test_a_runnable_that_returns_is_not_missed() -> None:
    async def brief() -> None:
        return

    manager = Manager()
    manager.add(brief, group=Group.OTHERS)
    task = asyncio.create_task(manager.run())
    await asyncio.sleep(10)
    assert not task.done()
    await stop(manager, task)


async def test_failure_whose_stop_takes_too_long_says_so_in_note() -> None:
    diary = Diary()
    manager = Manager(grace=1)
    manager.add(failing(ValueError("broken"), after=2))
    manager.add(diary.runnable("stubborn", ends_after=100), group=Group.OTHERS)
    with pytest.raises(ValueError, match="broken") as caught:
        await manager.run()
    assert "still running 1 s after the stop: stubborn" in caught.value.__notes__[0]
    await settle()


async def test_cancellation_stops_in_order_and_a_second_one_at_once() -> None:
    diary = Diary()
    manager = Manager(grace=-1)
    manager.add(diary.runnable("slow", ends_after=1000))
    manager.add(diary.runnable("server"), group=Group.SERVERS)
    task = asyncio.create_task(manager.run())
    await asyncio.sleep(1)
    task.cancel()
    await asyncio.sleep(5)
    assert "server stops" not in diary.lines
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await settle()
    assert diary.lines[-1] == "server stopped"
    assert asyncio.get_running_loop().time() == pytest.approx(6, abs=0.1)


@pytest.mark.spec("C15")
def test_cancelled_at_any_await_every_started_runnable_is_stopped() -> None:
    async def cancel_after(turns: int) -> list[str]:
        diary, server = Diary(), LeaseServer()
        config = ElectionConfig(namespace="ns", name="lead", identity="me")
        client = server.client(lambda _verb: Fault(after=0.01))
        manager = Manager(election=LeaderElector(config=config, lease=client))
        for group in Group:
            probe = diary.runnable(group.value, ready_after=0.01, ends_after=0.01)
            manager.add(probe, group=group)
        task = asyncio.create_task(manager.run())
        for _ in range(turns):
            await asyncio.sleep(0.005 if turns % 2 else 0)
        task.cancel()
        await asyncio.wait({task})
        assert task.cancelled()
        await asyncio.sleep(0.1)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert server.holder == ""
        return diary.lines

    for turns in range(1, 80):
        with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
            lines = runner.run(cancel_after(turns))
        started = [line.split()[0] for line in lines if line.endswith("starts")]
        stopped = [line.split()[0] for line in lines if line.endswith("stopped")]
        assert sorted(started) == sorted(stopped)


@pytest.mark.spec("C17")
async def test_names_are_unique_and_a_manager_runs_once() -> None:
    diary = Diary()
    manager = Manager()
    manager.add(diary.runnable("web"))
    with pytest.raises(ValueError, match="'web'"):
        manager.add(diary.runnable("web"))
    manager.add(forever)
    manager.add(forever)
    task = asyncio.create_task(manager.run())
    await settle()
    with pytest.raises(RuntimeError, match="runs once"):
        await manager.run()
    await stop(manager, task)
    with pytest.raises(RuntimeError, match="stopping"):
        manager.add(forever)


async def test_its_state_can_be_read() -> None:
    manager = Manager()
    manager.add(forever)
    assert "<RunnableGroup leader: not started>" in repr(manager)
    task = asyncio.create_task(manager.run())
    await settle()
    assert "<Manager running:" in repr(manager)
    assert "<RunnableGroup leader: 1/1 running>" in repr(manager)
    await stop(manager, task)


async def test_the_first_signal_stops_in_order() -> None:
    diary = Diary()
    manager = Manager()
    manager.add(diary.runnable("slow", ends_after=3))
    task = asyncio.create_task(run_until_signal(manager, [signal.SIGUSR1]))
    await settle()
    os.kill(os.getpid(), signal.SIGUSR1)
    await task
    assert diary.lines[-1] == "slow stopped"


async def test_the_second_signal_stops_at_once() -> None:
    diary = Diary()
    manager = Manager(grace=-1)
    manager.add(diary.runnable("slow", ends_after=3000))
    task = asyncio.create_task(run_until_signal(manager, [signal.SIGUSR1]))
    await settle()
    for _ in range(2):
        os.kill(os.getpid(), signal.SIGUSR1)
        await settle()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert asyncio.get_running_loop().time() < 1
    await settle()


async def test_cancelling_the_wait_for_a_signal_stops_the_manager_too() -> None:
    diary = Diary()
    manager = Manager()
    manager.add(diary.runnable("slow", ends_after=3))
    task = asyncio.create_task(run_until_signal(manager, [signal.SIGUSR1]))
    await settle()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert diary.lines[-1] == "slow stopped"
