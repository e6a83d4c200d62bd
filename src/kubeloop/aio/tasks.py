"""Background tasks that have an owner.

An `asyncio.TaskGroup` is for tasks that succeed or fail together. `BackgroundTasks` is for the
other kind: independent helpers, each of which may fail without ending the others. A failure is
reported when it happens; leaving the block cancels what still runs and waits until it has ended,
whatever happens meanwhile. Nothing outlives the block.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self, TypeAlias, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable
    from types import TracebackType

T = TypeVar("T")
TaskReport: TypeAlias = Callable[[str, BaseException], None]
"""Takes the name of a failed task and its exception."""

_log = logging.getLogger(__name__)


async def finish(tasks: Iterable[asyncio.Task[Any]], *, cancel: bool = True) -> None:
    """Wait until every task has ended, cancelling them first unless told not to.

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

    `on_error` hears of every task that ends with an exception (default: the log); cancellation is
    no failure. Tasks can be started only inside the block.
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

    async def __aexit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
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
