"""Things that run until they are cancelled, and groups of them.

A runnable is anything with `async def run(self)`, or a function that returns a coroutine. Cancelling
it asks it to end: it may finish what it is at. A second cancellation means now. Where it also has
`async def wait_until_ready(self)`, its group counts as started only when that returns.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from kubeloop.aio.tasks import finish

if TYPE_CHECKING:
    from kubeloop.controller.lifecycle import Group

RunFunction: TypeAlias = Callable[[], Coroutine[Any, Any, None]]
FailureReport: TypeAlias = Callable[[str, BaseException], None]

_log = logging.getLogger(__name__)


class Runnable(Protocol):
    """Runs until cancelled; returning early is fine, raising ends whoever runs it."""

    async def run(self) -> None:
        """Run."""


RunnableLike: TypeAlias = "Runnable | RunFunction"


@dataclasses.dataclass(frozen=True, slots=True)
class Entry:
    """A runnable under the name that logs and errors give it."""

    name: str
    run: RunFunction
    ready: RunFunction | None = None

    @classmethod
    def of(cls, runnable: RunnableLike, name: str) -> Entry:
        """Take a runnable or a function."""
        run = runnable if callable(runnable) else runnable.run
        return cls(name, run, getattr(runnable, "wait_until_ready", None))


class RunnableGroup:
    """The runnables of one group, started together. A failure is reported once, when it happens."""

    def __init__(self, group: Group, *, on_failure: FailureReport) -> None:
        self.group = group
        self._on_failure = on_failure
        self._entries: list[Entry] = []
        self._tasks: dict[asyncio.Task[None], Entry] = {}
        self._started = False

    def __repr__(self) -> str:
        running = f"{len(self._tasks)}/{len(self._entries)} running"
        return f"<RunnableGroup {self.group.value}: {running if self._started else 'not started'}>"

    @property
    def running(self) -> list[str]:
        """The names of what runs now."""
        return [entry.name for entry in self._tasks.values()]

    def add(self, entry: Entry) -> None:
        """Add a runnable; it starts at once where the group has started."""
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

    def _run(self, entry: Entry) -> None:
        task = asyncio.create_task(entry.run(), name=entry.name)
        self._tasks[task] = entry
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        entry = self._tasks.pop(task)
        if task.cancelled():
            return
        error = task.exception()
        if error is None:
            _log.info("%s has ended", entry.name)
        else:
            self._on_failure(entry.name, error)


async def _readiness(entry: Entry, running: asyncio.Task[None]) -> None:
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
