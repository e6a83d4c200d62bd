"""The manager: starts what a program consists of, watches it, and stops it in order.

    manager = Manager(election=ElectionThread(...))
    manager.add(server, group=Group.SERVERS)
    manager.add(caches, group=Group.CACHES)
    manager.add(controller, warm=True)
    await run_until_signal(manager)

Orders and their reasons are in `runnables.py`. `run` ends when `stop` was called (it returns), when
something failed (it raises that), when the lease was lost, or by cancellation; always after
everything was asked to end and had `grace` seconds for it. Whatever happens meanwhile is a message
to one loop, `_supervise`, which is the whole policy.

`run_until_signal` is for the edge of a program, the only place where signals are handled.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import enum
import logging
import signal
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, Protocol, TypeAlias, runtime_checkable

from kubeloop.aio.tasks import BackgroundTasks, finish
from kubeloop.controller.election.elector import Election, LeaderCallbacks
from kubeloop.controller.manager.runnables import (
    LAST_TO_STOP,
    STOP_ORDER,
    Group,
    RunnableEntry,
    RunnableGroup,
    RunnableLike,
    Shutdown,
)

OnLost: TypeAlias = Literal["exit", "standby"]

_log = logging.getLogger(__name__)


class LeaderElectionLost(RuntimeError):
    """The lease went to another replica, or could not be renewed in time."""

    def __init__(self) -> None:
        super().__init__("leader election lost")


class GracePeriodExpired(TimeoutError):
    """Something did not end in time; `names` says what."""

    def __init__(self, grace: float, names: Sequence[str]) -> None:
        super().__init__(f"still running {grace:g} s after the stop: {', '.join(names)}")
        self.names = tuple(names)


@runtime_checkable
class Warmable(Protocol):
    """Can get ready on a standby, before it may run."""

    async def warm_up(self) -> None:
        """Get ready; returns when it is."""

    async def close(self) -> None:
        """Undo that."""


class _Event(enum.Enum):
    STOP = enum.auto()
    ELECTED = enum.auto()
    LOST = enum.auto()


@dataclasses.dataclass(frozen=True, slots=True)
class _Failed:
    name: str
    error: BaseException


class Manager:
    """Runs runnables in groups; see the module.

    `grace` is how long a stop may take: 0 waits for nothing, less than 0 indefinitely. `on_lost` says
    what a lost lease means. "exit": the end, with LeaderElectionLost and without grace, so that a
    new process begins from nothing. "standby": only the leader's group stops; should the lease be
    ours again its runnables are run again, so add those as functions that make what they run.
    """

    def __init__(
        self, *, election: Election | None = None, grace: float = 30.0, on_lost: OnLost = "exit"
    ) -> None:
        self._election = election
        self._grace = grace
        self._on_lost = on_lost
        self._inbox: asyncio.Queue[_Event | _Failed] = asyncio.Queue()
        self._groups = {group: RunnableGroup(group, on_failure=self._failed) for group in Group}
        self._names: set[str] = set()
        self._electing: asyncio.Task[None] | None = None
        self._state = "new"

    def __repr__(self) -> str:
        return f"<Manager {self._state}: {', '.join(map(repr, self._groups.values()))}>"

    @property
    def is_leader(self) -> bool:
        """Whether the leader's work may be done here; always, if there is no election."""
        return self._election is None or self._election.is_leader

    def add(
        self,
        runnable: RunnableLike,
        *,
        group: Group = Group.LEADER,
        name: str = "",
        warm: bool = False,
    ) -> None:
        """Add a runnable, before the start or later; later it starts at once if its group has.

        `warm` is for what has `warm_up` and `close`: it warms up on standbys too. Raises ValueError
        if the name is taken, RuntimeError if the manager stops.
        """
        if self._state == "stopping":
            raise RuntimeError("the manager is stopping; it takes nothing more")
        entry = RunnableEntry.of(runnable, self._unique_name(runnable, name))
        if warm:
            if not isinstance(runnable, Warmable):
                raise TypeError(f"{entry.name} cannot warm up: it has no warm_up() and close()")
            warm_up_entry = RunnableEntry.of(_WarmUp(runnable), f"warm-up of {entry.name}")
            self._groups[Group.WARMUP].add(warm_up_entry)
        self._groups[group].add(entry)

    def stop(self) -> None:
        """Ask `run` to stop everything and return."""
        self._inbox.put_nowait(_Event.STOP)

    async def run(self) -> None:
        """Start everything and run until stopped, failed or cancelled. Once only."""
        if self._state != "new":
            raise RuntimeError("a manager runs once; make another one")
        self._state = "running"
        try:
            async with BackgroundTasks(on_error=self._failed) as starting:
                await self._supervise(starting)
        except LeaderElectionLost:
            await self._shut_down(0.0)
            raise
        except BaseException as error:
            stuck = await self._shut_down(self._grace)
            if stuck:
                error.add_note(str(GracePeriodExpired(self._grace, stuck)))
            raise
        stuck = await self._shut_down(self._grace)
        if stuck:
            raise GracePeriodExpired(self._grace, stuck)

    async def _supervise(self, starting: BackgroundTasks) -> None:
        leader = self._groups[Group.LEADER]
        starting.start(self._start(), name="start of the manager")
        while True:
            match await self._inbox.get():
                case _Event.STOP:
                    return
                case _Event.ELECTED if self.is_leader:
                    # Started here and now: a loss that follows must find it running to stop it.
                    leader.start()
                    starting.start(leader.wait_until_ready(), name="start of the leader")
                case _Event.ELECTED:
                    _log.info("elected, and no longer leading; the lease is gone again")
                case _Event.LOST if self._on_lost == "standby":
                    starting.start(self._stand_by(), name="return to standby")
                case _Event.LOST:
                    raise LeaderElectionLost
                case _Failed(name, error):
                    _log.error("%s failed: %r", name, error)
                    raise error

    async def _start(self) -> None:
        for group in Group:
            if group is not Group.LEADER:
                self._groups[group].start()
                await self._groups[group].wait_until_ready()
        if self._election is None:
            self._inbox.put_nowait(_Event.ELECTED)
        else:
            self._campaign(self._election)

    async def _stand_by(self) -> None:
        # The second request to end, which means now; but campaign only when nothing is left.
        shutdown = Shutdown(self._grace)
        await shutdown.stop([self._groups[Group.LEADER]])
        if shutdown.stuck:
            # It must not go on beside another leader, and nothing short of the end stops it.
            raise GracePeriodExpired(self._grace, shutdown.stuck)
        assert self._election is not None  # it was lost, so there is one
        self._campaign(self._election)

    def _campaign(self, election: Election) -> None:
        self._electing = asyncio.create_task(self._elect(election), name="leader election")

    async def _elect(self, election: Election) -> None:
        callbacks = LeaderCallbacks(on_started=self._elected, on_stopped=self._step_down)
        try:
            await election.run(callbacks)
        except Exception as error:  # noqa: BLE001 -- reported to the loop that decides
            self._failed("leader election", error)
        else:
            self._inbox.put_nowait(_Event.LOST)

    async def _elected(self) -> None:
        self._inbox.put_nowait(_Event.ELECTED)

    def _step_down(self) -> None:
        # At once, before any message is read: from here on another replica may lead.
        self._groups[Group.LEADER].cancel()

    async def _shut_down(self, grace: float) -> list[str]:
        self._state = "stopping"
        shutdown = Shutdown(grace)
        try:
            for stage in STOP_ORDER:
                await shutdown.stop([self._groups[group] for group in stage])
            await shutdown.end(self._electing)
            await shutdown.stop([self._groups[group] for group in LAST_TO_STOP])
        except asyncio.CancelledError:
            self._abandon()
            raise
        return shutdown.stuck if grace else []

    def _abandon(self) -> None:
        """Asked twice: let go of everything at once."""
        for group in self._groups.values():
            group.cancel()
        if self._electing is not None:
            self._electing.cancel()

    def _failed(self, name: str, error: BaseException) -> None:
        self._inbox.put_nowait(_Failed(name, error))

    def _unique_name(self, runnable: RunnableLike, wanted: str) -> str:
        given = wanted or getattr(runnable, "name", "")
        if given and given in self._names:
            raise ValueError(
                f"{given!r} is already in the manager; give each runnable a name of its own"
            )
        name = given or _default_name(runnable)
        number = 1
        while name in self._names:
            number += 1
            name = f"{_default_name(runnable)} {number}"
        self._names.add(name)
        return name


class _WarmUp:
    """Keeps something warm for as long as it runs."""

    def __init__(self, warmable: Warmable) -> None:
        self._warmable = warmable

    async def run(self) -> None:
        try:
            await self._warmable.warm_up()
            await asyncio.get_running_loop().create_future()
        finally:
            await self._warmable.close()


def _default_name(runnable: RunnableLike) -> str:
    return getattr(runnable, "__qualname__", "") or type(runnable).__name__


class Stoppable(Protocol):
    """A manager, as `run_until_signal` sees it."""

    async def run(self) -> None:
        """Run until stopped."""

    def stop(self) -> None:
        """Ask `run` to end."""


async def run_until_signal(
    manager: Stoppable, signals: Sequence[signal.Signals] = (signal.SIGTERM, signal.SIGINT)
) -> None:
    """Run the manager; the first signal stops it in order, the second one at once.

    Raises what `run` raises; after a second signal that is CancelledError.
    """
    running = asyncio.create_task(manager.run(), name="manager")
    with _handled(signals, _Escalation(manager.stop, running.cancel)):
        try:
            await asyncio.wait({running})
        finally:
            await finish([running])
    running.result()


class _Escalation:
    """Calls the first function for the first signal, the second one from then on."""

    def __init__(self, first: Callable[[], object], then: Callable[[], object]) -> None:
        self._next = first
        self._then = then

    def __call__(self, number: signal.Signals) -> None:
        _log.info("stopping: got %s", number.name)
        self._next()
        self._next = self._then


@contextlib.contextmanager
def _handled(
    signals: Sequence[signal.Signals], handler: Callable[[signal.Signals], None]
) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    for number in signals:
        loop.add_signal_handler(number, handler, number)
    try:
        yield
    finally:
        for number in signals:
            loop.remove_signal_handler(number)
