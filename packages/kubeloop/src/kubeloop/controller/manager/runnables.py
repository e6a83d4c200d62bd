"""Runnables, the groups they start and stop in, and the orderly stop of those groups.

A runnable is anything with `async def run(self)`, or a function that returns a coroutine.
Cancelling it asks it to end: it may finish what it is doing. A second cancellation means now. If it
also has `async def wait_until_ready(self)`, its group counts as started only when that returns.
`Caches` makes a runnable of a factory's informers.

The order of start and stop is data: `Group` and `STOP_ORDER`, with the reasons beside them.

A `Shutdown` stops stage by stage, with one span of grace for all of it. Each stage is asked to end
and waited for. When the grace is used up, whatever still runs is asked a second time, which means
now, and is not waited for any longer; the stages that follow get no time either. What did not end
is recorded by name.
"""

from __future__ import annotations

import asyncio
import dataclasses
import enum
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from kubeloop.aio.tasks import finish

if TYPE_CHECKING:
    from kubeloop.informer.factory import SharedInformerFactory


_log = logging.getLogger(__name__)


class Group(enum.Enum):
    """Runnables that are started and stopped together, in the order of the members.

    A group is started when everything in the groups before it is ready.
    """

    # Records everything, from the first start to the last stop.
    RECORDERS = "recorders"
    # Health and metrics: probes want answers while the caches still fill, or we are restarted.
    SERVERS = "servers"
    # Conversion webhooks of our own must answer before a cache lists what they convert.
    WEBHOOKS = "webhooks"
    # Whatever follows reads from them, and must not judge by half a cache.
    CACHES = "caches"
    # Works on every replica, leader or not.
    OTHERS = "others"
    # Gets controllers ready on standbys, so that a new leader begins at once.
    WARMUP = "warmup"
    # Only on the leader; waits for the election, which itself begins when all else has started.
    LEADER = "leader"


STOP_ORDER: tuple[tuple[Group, ...], ...] = (
    # The sources of new work end first, both at the same time.
    (Group.WARMUP, Group.OTHERS),
    # The leader finishes what it is at, with caches and the lease still there.
    (Group.LEADER,),
    # No reader is left.
    (Group.CACHES,),
    (Group.WEBHOOKS,),
    # Health and metrics to the last: we are alive while we stop, and probes should see that.
    (Group.SERVERS,),
)
"""Stages of the stop, in order. After them the lease is released, not before: the next leader must
not begin while ours still works."""

LAST_TO_STOP: tuple[Group, ...] = (
    # Events of the stop itself, and of the release, should still be written.
    Group.RECORDERS,
)


RunFunction: TypeAlias = Callable[[], Coroutine[Any, Any, None]]
FailureReport: TypeAlias = Callable[[str, BaseException], None]


class Runnable(Protocol):
    """Runs until cancelled; returning early is fine, raising ends its manager."""

    async def run(self) -> None:
        """Run."""


RunnableLike: TypeAlias = "Runnable | RunFunction"


@dataclasses.dataclass(frozen=True, slots=True)
class RunnableEntry:
    """A runnable under the name that logs and errors give it."""

    name: str
    run: RunFunction
    ready: RunFunction | None = None

    @classmethod
    def of(cls, runnable: RunnableLike, name: str) -> RunnableEntry:
        """Take a runnable or a function."""
        run = runnable if callable(runnable) else runnable.run
        return cls(name, run, getattr(runnable, "wait_until_ready", None))


class RunnableGroup:
    """The runnables of one group, started together. A failure is reported once, when it happens."""

    def __init__(self, group: Group, *, on_failure: FailureReport) -> None:
        self.group = group
        self._on_failure = on_failure
        self._entries: list[RunnableEntry] = []
        self._tasks: dict[asyncio.Task[None], RunnableEntry] = {}
        self._started = False

    def __repr__(self) -> str:
        running = f"{len(self._tasks)}/{len(self._entries)} running"
        return f"<RunnableGroup {self.group.value}: {running if self._started else 'not started'}>"

    @property
    def running(self) -> list[str]:
        """The names of what runs now."""
        return [entry.name for entry in self._tasks.values()]

    def add(self, entry: RunnableEntry) -> None:
        """Add a runnable; it starts at once if the group has started."""
        self._entries.append(entry)
        if self._started:
            self._run(entry)

    def start(self) -> None:
        """Start all."""
        self._started = True
        for entry in self._entries:
            self._run(entry)

    async def wait_until_ready(self) -> None:
        """Return when all that run are ready. Raises what failed before it was ready."""
        running = list(self._tasks.items())
        await asyncio.gather(*(_readiness(entry, task) for task, entry in running))

    def cancel(self) -> None:
        """Ask everything that runs to end; a repetition asks for it now."""
        self._started = False
        for task in list(self._tasks):
            task.cancel()

    async def wait(self, timeout: float | None) -> bool:
        """Wait until nothing runs, or for `timeout` seconds; says whether nothing runs."""
        if self._tasks:
            await asyncio.wait(list(self._tasks), timeout=timeout)
        return not self._tasks

    def _run(self, entry: RunnableEntry) -> None:
        task = asyncio.create_task(entry.run(), name=entry.name)
        self._tasks[task] = entry
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        entry = self._tasks.pop(task)
        if task.cancelled():
            return
        error = task.exception()
        if error is None:
            _log.debug("%s has ended", entry.name)
        else:
            self._on_failure(entry.name, error)


async def _readiness(entry: RunnableEntry, running: asyncio.Task[None]) -> None:
    """Return when the runnable is ready, or has ended; raise what it failed with."""
    if entry.ready is None:
        return
    ready = asyncio.create_task(entry.ready(), name=f"readiness of {entry.name}")
    try:
        await asyncio.wait({ready, running}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await finish([ready])
    for task in (running, ready):
        if task.done() and not task.cancelled():
            task.result()


class Caches:
    """Runs a factory's informers; ready when all of them are synced.

    For `Group.CACHES`. `sync_timeout` seconds without a full sync fail the manager's start with
    `NotSynced`, which names the informers; None waits indefinitely.
    """

    def __init__(
        self, factory: SharedInformerFactory, *, sync_timeout: float | None = None
    ) -> None:
        self._factory = factory
        self._sync_timeout = sync_timeout
        self._started = asyncio.Event()
        self._synced = False

    def check(self) -> None:
        """Raise RuntimeError until the informers are synced; for a readiness check."""
        if not self._synced:
            raise RuntimeError("the caches are not synced yet")

    async def run(self) -> None:
        """Run the informers until cancelled; ends with the error of one that fails for good."""
        async with self._factory.running():
            self._started.set()
            await asyncio.get_running_loop().create_future()

    async def wait_until_ready(self) -> None:
        """Wait until the informers that were asked for before the start are synced."""
        await self._started.wait()
        await self._factory.wait_for_sync(self._sync_timeout)
        self._synced = True


class Shutdown:
    """One stop, begun when it is made. `grace` 0 waits for nothing, less than 0 indefinitely."""

    def __init__(self, grace: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._deadline = None if grace < 0 else self._loop.time() + grace
        self.stuck: list[str] = []

    async def stop(self, groups: Sequence[RunnableGroup]) -> None:
        """Stop the groups of one stage, all at the same time."""
        for group in groups:
            group.cancel()
        left = self._left()
        await asyncio.gather(*(group.wait(left) for group in groups))
        for group in groups:
            self._give_up(group.running)
            group.cancel()

    async def end(self, task: asyncio.Task[None] | None) -> None:
        """Cancel a task that belongs to no group, and wait for it."""
        if task is None or task.done():
            return
        task.cancel()
        await asyncio.wait({task}, timeout=self._left())
        if not task.done():
            self._give_up([task.get_name()])
            task.cancel()

    def _left(self) -> float | None:
        return None if self._deadline is None else max(0.0, self._deadline - self._loop.time())

    def _give_up(self, names: list[str]) -> None:
        if names:
            _log.warning("not waiting any longer for %s", ", ".join(names))
            self.stuck += names
