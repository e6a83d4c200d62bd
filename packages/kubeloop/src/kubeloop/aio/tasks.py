"""Tasks that have an owner, and how they share an event loop.

An `asyncio.TaskGroup` is for tasks that succeed or fail together. The tools here are for the
other cases; none of them leaves a task behind.

- `BackgroundTasks`: independent tasks, each of which may fail without ending the others. A
  failure is reported when it happens; leaving the block cancels what still runs and waits for
  its end. `finish` does the same for any tasks.
- `Interruptible`: a block of code that another task may end, with a reason.
- `SingleFlight`: one run shared by all callers that want it at the same time. The run is a task
  of its own, so that cancelling one caller does not disturb the others; when the last caller is
  cancelled the run is cancelled too, and waited for.
- `parallelize_until`: a known number of pieces of work, a bounded number of workers.
- `TimeBudget`: cooperative yielding in long synchronous work. It is a span of loop time and a
  number of items, whichever ends first: the time bounds how long other tasks wait, the count
  keeps things moving where time stands still (a virtual-time loop).

      budget = TimeBudget()
      for item in many:
          handle(item)
          if budget.spent():
              await budget.rest()
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, Generic, Self, TypeAlias, TypeVar

T = TypeVar("T")
TaskReport: TypeAlias = Callable[[str, BaseException], None]
"""Takes the name of a failed task and its exception."""

_log = logging.getLogger(__name__)


async def finish(tasks: Iterable[asyncio.Task[Any]], *, cancel: bool = True) -> None:
    """Wait until every task has ended, cancelling them first unless `cancel` is False.

    If the caller is cancelled while it waits, the tasks are cancelled (again), waited for all the
    same, and only then the cancellation goes on. The tasks' own outcomes are not raised.
    """
    waiting = {task for task in tasks if not task.done()}
    if cancel:
        _cancel_all(waiting)
    cancelled: asyncio.CancelledError | None = None
    while waiting:
        try:
            _, waiting = await asyncio.wait(waiting)
        except asyncio.CancelledError as error:
            cancelled = error
            waiting = {task for task in waiting if not task.done()}
            _cancel_all(waiting)
    if cancelled is not None:
        raise cancelled


class BackgroundTasks:
    """A set of named tasks with one owner, used as an `async with` block.

    `on_error` is called for every task that ends with an exception (default: the log), not for a
    cancelled one. Tasks can be started only inside the block.
    """

    def __init__(self, *, on_error: TaskReport | None = None) -> None:
        self._on_error = on_error or _log_failure
        self._tasks: set[asyncio.Task[Any]] = set()
        self._open = False

    def __len__(self) -> int:
        return len(self._tasks)

    def __repr__(self) -> str:
        names = ", ".join(sorted(task.get_name() for task in self._tasks))
        return f"<BackgroundTasks [{'open' if self._open else 'closed'}: {names}]>"

    def start(self, work: Coroutine[Any, Any, T], *, name: str) -> asyncio.Task[T]:
        """Run a coroutine as a task of this owner. Raises RuntimeError outside the block."""
        if not self._open:
            work.close()
            raise RuntimeError(f"task {name!r} cannot start: its owner is not open")
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def cancel(self) -> None:
        """Ask every running task to end; the block's exit waits for them."""
        _cancel_all(self._tasks)

    async def drain(self) -> None:
        """Wait until no task is left, those included that start meanwhile; cancels nothing."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def __aenter__(self) -> Self:
        self._open = True
        return self

    async def __aexit__(self, *_exc: object) -> None:
        self._open = False
        await finish(self._tasks)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_error(task.get_name(), error)


def _cancel_all(tasks: Iterable[asyncio.Task[Any]]) -> None:
    for task in list(tasks):
        task.cancel()


def _log_failure(name: str, error: BaseException) -> None:
    _log.error("background task %s failed", name, exc_info=error)


class Interruptible:
    """An `async with` block; `interrupt(reason)` makes it raise `reason`, wherever it waits.

    Built on asyncio's own timeout, so that a cancellation from outside is never mistaken for an
    interruption, nor the other way round. Enter it once, in the task that is to be interrupted.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._limit = asyncio.timeout(None)
        self._reason: BaseException | None = None
        self._inside = False

    def interrupt(self, reason: BaseException) -> None:
        """End the block; the first reason counts. Does nothing outside the block."""
        if self._inside and self._reason is None:
            self._reason = reason
            self._limit.reschedule(self._loop.time())

    async def __aenter__(self) -> Self:
        await self._limit.__aenter__()
        self._inside = True
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._inside = False
        try:
            await self._limit.__aexit__(*exc)  # type: ignore[arg-type]  # as `async with` gave them
        except TimeoutError:
            if self._reason is None:
                raise
            raise self._reason from None


class _Flight(Generic[T]):
    """A run and how many wait for it; abandoned once none does."""

    def __init__(self, task: asyncio.Task[T]) -> None:
        self.task = task
        self.waiters = 0
        self.abandoned = False


class SingleFlight(Generic[T]):
    """Shares a run among concurrent callers; results are not kept after it."""

    def __init__(self, work: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self._work = work
        self._flight: _Flight[T] | None = None

    async def run(self) -> T:
        """Join the run under way or start one; return or raise what it does."""
        flight = await self._join_or_start()
        flight.waiters += 1
        try:
            await asyncio.wait({flight.task})
        finally:
            flight.waiters -= 1
            if not flight.waiters and not flight.task.done():
                await self._abandon(flight)
        return flight.task.result()

    async def _join_or_start(self) -> _Flight[T]:
        # An abandoned run is on its way out and must not be joined, nor overlapped by a new one.
        while (flight := self._flight) is not None and flight.abandoned:
            await asyncio.wait({flight.task})
        if flight is None:
            flight = self._flight = _Flight(asyncio.create_task(self._work()))
            flight.task.add_done_callback(self._ended)
        return flight

    async def _abandon(self, flight: _Flight[T]) -> None:
        flight.abandoned = True
        flight.task.cancel()
        await asyncio.wait({flight.task})

    def _ended(self, task: asyncio.Task[T]) -> None:
        self._flight = None
        if not task.cancelled():
            task.exception()  # marks it as seen: an abandoned run's failure has no reader


async def parallelize_until(
    workers: int,
    pieces: int,
    func: Callable[[int], Awaitable[object]],
    stop: asyncio.Event | None = None,
) -> None:
    """Await `func(0)` ... `func(pieces - 1)`, each exactly once, at most `workers` at a time.

    Once `stop` is set no further piece is begun; pieces under way end. The first exception cancels
    the rest and is raised (in a group, since several may fail together); cancellation ends all
    workers before it goes on.
    """
    if workers < 1:
        raise ValueError(f"workers={workers} must be at least 1")
    left = iter(range(pieces))

    async def work() -> None:
        for piece in left:
            if stop is not None and stop.is_set():
                return
            await func(piece)

    async with asyncio.TaskGroup() as group:
        for _ in range(min(workers, pieces)):
            group.create_task(work())


class TimeBudget:
    """How long one task may run before it has to rest; starts when it is made.

    One budget serves one task. A task that has just waited for something else may `restart()`.
    """

    __slots__ = ("_ends", "_items", "_left", "_loop", "_seconds")

    def __init__(self, seconds: float = 0.005, items: int = 1000) -> None:
        self._loop = asyncio.get_running_loop()
        self._seconds = seconds
        self._items = items
        self.restart()

    def restart(self) -> None:
        """Count from now; for after an await that really waited."""
        self._ends = self._loop.time() + self._seconds
        self._left = self._items

    def spent(self) -> bool:
        """Count one item; whether it is time to rest."""
        self._left -= 1
        return self._left <= 0 or self._loop.time() >= self._ends

    async def rest(self) -> None:
        """Let everything else that is ready run once, then start again."""
        await asyncio.sleep(0)
        self.restart()
