"""One handler's buffer, the task that empties it, and the caller's handle of both.

The buffer is unbounded, so that a slow handler delays neither the store nor the other handlers; its
depth is a metric and a warning. Only resyncs do not add up there: a handler that has not worked off
one of them is not due for the next, or it would fall behind further with each. A handler that joins
late is given the store's objects first, then the live notifications: the objects wait and become
notifications one at a time.

The runner calls the handler for one notification at a time, in order, and yields by a time budget.
A handler that raises loses that notification and gets a pause; nothing is repeated.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, TypeVar

from kubeloop.aio.wait import rest
from kubeloop.informer.handlers import Added, Deliver, Notification
from kubeloop.informer.metrics import InformerMetrics, NoMetrics
from kubeloop.informer.sync import SyncGate
from kubeloop.objects.meta import Key

T = TypeVar("T")

BUDGET = 0.005
HIGH_WATER = 10_000
MOST_CALLS = 1000
PAUSE = 1.0
SLOW_CALL = 0.1

_log = logging.getLogger(__name__)
_running: contextvars.ContextVar[object] = contextvars.ContextVar("kubeloop_running_listener")


class ProcessorListener(Generic[T]):
    """A registered handler. `on_ended` frees what was made for it."""

    def __init__(
        self,
        *,
        name: str,
        deliver: Deliver[T],
        requested_period: float = 0.0,
        period: float = 0.0,
        syncing: bool = True,
        fail_fast: bool = False,
        metrics: InformerMetrics | None = None,
        on_ended: Callable[[], object] = lambda: None,
    ) -> None:
        self.name = name
        self.gate = SyncGate(name)
        self.requested_period = requested_period
        self.period = period
        self.syncing = syncing
        self._deliver = deliver
        self._on_ended = on_ended
        self._fail_fast = fail_fast
        self._metrics = metrics or NoMetrics()
        self._buffer: deque[Notification[T]] = deque()
        self._replay: deque[tuple[Key, T]] = deque()
        self._initial_left = 0
        self._received = 0
        self._delivered = 0
        self._last_resync = 0
        self._upstream_synced = False
        self._next_resync = 0.0
        self._wake = asyncio.Event()
        self._closing = asyncio.Event()
        self._warned = False

    @property
    def pending(self) -> int:
        """How many notifications wait."""
        return len(self._buffer) + len(self._replay)

    def __repr__(self) -> str:
        state = "closed" if self._closing.is_set() else "open"
        return f"<ProcessorListener {self.name} {state}: {self.pending} pending>"

    # Calls of the informer

    def replay(self, items: Iterable[tuple[Key, T]]) -> None:
        """Give a late handler the objects that are in the store, as initial adds."""
        self._replay.extend(items)
        self._initial_left = len(self._replay)
        self._received = len(self._replay)
        self._wake.set()

    def push(self, notes: Sequence[Notification[T]]) -> None:
        """Append notifications; nothing is taken after the close."""
        if not notes or self._closing.is_set():
            return
        if not self._upstream_synced:
            self._initial_left += sum(1 for note in notes if type(note) is Added and note.initial)
        self._buffer.extend(notes)
        self._received += len(notes)
        self._wake.set()
        if len(self._buffer) > HIGH_WATER and not self._warned:
            self._warned = True
            _log.warning("handler %s is slow: %d notifications wait", self.name, len(self._buffer))

    def upstream_synced(self) -> None:
        """Learn that the first list is in the store and its adds are in the buffer."""
        self._upstream_synced = True
        self._check_gate()

    def close(self, *, drain: bool) -> None:
        """Take nothing more; drop what is pending unless `drain`, and let the runner end."""
        if not drain:
            self._buffer.clear()
            self._replay.clear()
            self.gate.stop()
        self._closing.set()
        self._wake.set()

    def ended(self) -> None:
        """Note that the runner has ended, or never ran."""
        self.gate.stop()
        self._on_ended()

    def is_current(self) -> bool:
        """Whether the caller is this handler's callback, or was started by it."""
        return _running.get(None) is self

    def arm_resync(self, now: float) -> None:
        """Count the resync period from now."""
        self._next_resync = now + self.period

    def check_resync(self, now: float) -> None:
        """Flag the handler if it is due, else take the flag away."""
        caught_up = self._delivered >= self._last_resync
        self.syncing = self.period > 0 and now >= self._next_resync and caught_up
        if self.syncing:
            self.arm_resync(now)

    def resynced(self) -> None:
        """Note that all of a resync is in the buffer."""
        self._last_resync = self._received

    # The runner

    async def run(self) -> None:
        """Deliver until closed."""
        _running.set(self)
        while True:
            while not self.pending:
                if self._closing.is_set():
                    return
                self._wake.clear()
                await self._wake.wait()
            if await self._deliver_some():
                await rest(PAUSE, self._closing)
            elif self.pending:
                await asyncio.sleep(0)

    async def _deliver_some(self) -> bool:
        """Deliver for one time budget, or until a call fails; whether one did."""
        time = asyncio.get_running_loop().time
        began = called = time()
        ends = began + BUDGET
        count, failed = 0, False
        while (self._buffer or self._replay) and not failed:
            note = self._next()
            count += 1
            try:
                result = self._deliver(note)
                if result is not None and hasattr(result, "__await__"):
                    await result
                elif (now := time()) - called > SLOW_CALL:
                    self._warn_slow(now - called)
            except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 -- a handler's failure is its own
                self._failed(error, note)
                failed = True
            finally:
                if type(note) is Added and note.initial:
                    self._initial_left -= 1
                    self._check_gate()
            called = time()
            if called >= ends or count >= MOST_CALLS:
                break
        self._delivered += count
        self._metrics.handled(handler=self.name, notifications=count, seconds=called - began)
        self._metrics.pending(handler=self.name, notifications=self.pending)
        if self._warned and len(self._buffer) < HIGH_WATER // 2:
            self._warned = False
        return failed

    def _next(self) -> Notification[T]:
        if self._replay:
            key, obj = self._replay.popleft()
            return Added(key, obj, initial=True)
        return self._buffer.popleft()

    def _failed(self, error: BaseException, note: Notification[T]) -> None:
        task = asyncio.current_task()
        if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
            raise error
        self._metrics.handler_failed(handler=self.name)
        if self._fail_fast:
            raise error
        _log.error("handler %s failed for %s", self.name, note.key, exc_info=error)

    def _warn_slow(self, seconds: float) -> None:
        _log.warning(
            "handler %s blocked the event loop for %.0f ms; make it async, or register it with"
            " blocking=True",
            *(self.name, seconds * 1000),
        )

    def _check_gate(self) -> None:
        if self._upstream_synced and self._initial_left == 0:
            self.gate.open()


class Handle(Generic[T]):
    """One registration of a handler; made by `SharedInformer.add_handler`.

    It is *synced* once the informer is and every add of the initial list has returned.
    """

    __slots__ = ("_listener", "_owner")

    def __init__(self, listener: ProcessorListener[T], owner: Any) -> None:
        self._listener = listener
        self._owner = owner

    @property
    def name(self) -> str:
        """The handler's name."""
        return self._listener.name

    @property
    def pending(self) -> int:
        """How many notifications wait for the handler."""
        return self._listener.pending

    @property
    def resync_period(self) -> float:
        """The resync period that the handler got, in seconds; 0 for never."""
        return self._listener.period

    @property
    def has_synced(self) -> bool:
        """Whether the handler has seen everything that was there at the beginning."""
        return self._listener.gate.synced

    @property
    def gate(self) -> SyncGate:
        """The same, to be waited for."""
        return self._listener.gate

    async def wait_synced(self) -> bool:
        """Wait until synced (True), or until that can no longer happen (False)."""
        return await self._listener.gate.wait()

    def listener_of(self, owner: object) -> ProcessorListener[T] | None:
        """Return the listener for its own informer, None for any other."""
        return self._listener if owner is self._owner else None

    def __repr__(self) -> str:
        return f"<Handle of {self._listener!r}>"
