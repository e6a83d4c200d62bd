"""From one stream of notifications to the buffers of all handlers, and when each is resynced.

Distribution is a few list operations for each batch, whatever happens in the handlers: every
listener has a buffer and a runner task of its own. The resync arithmetic is client-go's: there is
one check period; at each check the listeners that are due are flagged *syncing*, the others are
not, and notifications that bring nothing new (`changed` leaves them out) go to flagged ones only.
Listeners start flagged.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Generic, TypeAlias, TypeVar

from kubeloop.aio.tasks import finish
from kubeloop.informer.handlers import Notification

if TYPE_CHECKING:
    from kubeloop.informer.listener import ProcessorListener

T = TypeVar("T")

Inspect: TypeAlias = Callable[[list[Notification[T]]], None]

MIN_RESYNC = 1.0
_log = logging.getLogger(__name__)


class Dispatcher(Generic[T]):
    """The listeners of one informer. `check_period` 0 means that there is no resync at all.

    `inspect` sees every notification before any listener does.
    """

    def __init__(
        self, *, name: str, check_period: float = 0.0, inspect: Inspect[T] | None = None
    ) -> None:
        self.check_period = check_period if check_period <= 0 else max(check_period, MIN_RESYNC)
        self._inspect = inspect
        self._name = name
        self._listeners: dict[ProcessorListener[T], None] = {}
        self._tasks: dict[ProcessorListener[T], asyncio.Task[None]] = {}
        self._failure: asyncio.Future[None] | None = None

    def __len__(self) -> int:
        return len(self._listeners)

    def __contains__(self, listener: object) -> bool:
        return listener in self._listeners

    @property
    def started(self) -> bool:
        """Whether runners run."""
        return self._failure is not None

    # Distribution

    def distribute(
        self,
        notes: list[Notification[T]],
        changed: list[Notification[T]] | None = None,
        *,
        recipients: Collection[ProcessorListener[T]] | None = None,
    ) -> None:
        """Append to the buffers; `changed` is `notes` without those of unchanged objects, if any.

        `recipients` is for long work done in pieces: the listeners at its beginning.
        """
        if self._inspect is not None:
            self._inspect(notes)
        for listener in self._listeners if recipients is None else recipients:
            listener.push(notes if changed is None or listener.syncing else changed)

    def recipients(self) -> list[ProcessorListener[T]]:
        """Return the present listeners."""
        return list(self._listeners)

    def syncing(self) -> list[ProcessorListener[T]]:
        """Return the listeners that are flagged."""
        return [listener for listener in self._listeners if listener.syncing]

    def synced(self) -> None:
        """Notify the listeners that the first list is complete."""
        for listener in self._listeners:
            listener.upstream_synced()

    # Resync

    def request_period(self, wanted: float, *, started: bool) -> float:
        """Register a handler's resync period; returns the period that it gets."""
        if wanted <= 0:
            return 0.0
        wanted = max(wanted, MIN_RESYNC)
        if wanted < self.check_period and not started:
            self.check_period = wanted
            for listener in self._listeners:
                listener.period = self._granted(listener.requested_period)
        return self._granted(wanted)

    def _granted(self, wanted: float) -> float:
        if wanted <= 0:
            return 0.0
        if self.check_period <= 0:
            _log.warning(
                "%s: a handler asked for a resync, but the informer does not resync", self._name
            )
            return 0.0
        if wanted < self.check_period:
            _log.warning(
                "%s: resync period %g s raised to the informer's check period %g s",
                *(self._name, wanted, self.check_period),
            )
        return max(wanted, self.check_period)

    def mark_due(self) -> bool:
        """Flag exactly the listeners that are due now; whether there are any."""
        now = asyncio.get_running_loop().time()
        for listener in self._listeners:
            listener.check_resync(now)
        return any(listener.syncing for listener in self._listeners)

    # Runners

    def start(self) -> None:
        """Start the runners of all listeners; later ones start as they come."""
        self._failure = asyncio.get_running_loop().create_future()
        for listener in self._listeners:
            self._spawn(listener)

    def add(self, listener: ProcessorListener[T]) -> None:
        """Add a listener; from the next distribution on it gets everything."""
        self._listeners[listener] = None
        if self.started:
            self._spawn(listener)

    async def remove(self, listener: ProcessorListener[T], *, drain: bool) -> None:
        """Remove a listener and wait for its running callback, unless called from inside it."""
        self._listeners.pop(listener, None)
        listener.close(drain=drain)
        task = self._tasks.get(listener)
        if task is None:
            listener.ended()
        elif not listener.is_current():
            await asyncio.wait({task})

    async def failure(self) -> None:
        """Wait indefinitely; raises what a runner died of."""
        assert self._failure is not None
        await self._failure

    def close(self) -> None:
        """Close all buffers; their runners end by themselves."""
        for listener in (*self._listeners, *self._tasks):
            listener.close(drain=False)

    async def stop(self, *, grace: float) -> None:
        """Close all buffers, wait for the callbacks that run, cancel them after `grace` seconds."""
        self.close()
        running = set(self._tasks.values())
        try:
            if running:
                await asyncio.wait(running, timeout=grace)
        finally:
            await finish(running)
            if self._failure is not None:
                self._failure.cancel()

    def _spawn(self, listener: ProcessorListener[T]) -> None:
        listener.arm_resync(asyncio.get_running_loop().time())
        task = asyncio.create_task(listener.run(), name=f"{self._name}/{listener.name}")
        self._tasks[listener] = task
        task.add_done_callback(lambda done: self._ended(listener, done))

    def _ended(self, listener: ProcessorListener[T], task: asyncio.Task[None]) -> None:
        self._tasks.pop(listener, None)
        listener.ended()
        error = None if task.cancelled() else task.exception()
        if error is not None and self._failure is not None and not self._failure.done():
            self._failure.set_exception(error)
            self._failure.exception()  # retrieved here, so that no task needs to wait for it
