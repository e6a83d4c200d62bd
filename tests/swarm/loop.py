"""An event loop on which one seed decides the order of everything.

Time is virtual: it jumps to the next timer when nothing is ready. Within a pretended process callbacks run in the order in which
asyncio promises to run them; between processes the seed decides in every turn. Nothing outside the loop is waited
for, so a run is a function of its seed.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import dataclasses
import heapq
import itertools
import math
import random
from collections.abc import Callable, Coroutine
from typing import Any

PROCESS: contextvars.ContextVar[Process] = contextvars.ContextVar("process")


# A turn in which nothing waits for time follows another; so many do not.
_MOST_TURNS = 20_000


class Stuck(RuntimeError):
    """Every task waits and no timer is set, or something goes round and waits for nothing."""


@dataclasses.dataclass(eq=False)
class Process:
    """A pretended process, or another actor of a run; everything that it starts belongs to it."""

    name: str
    address: str = ""
    node: int = 0
    alive: bool = True
    #: When things go in and out again, and how much slower its messages are.
    cut_until: float = 0.0
    slowness: float = 1.0
    #: The end of the time in which the watches that it opened before `deaf_from` deliver nothing, and do not end.
    deaf_until: float = 0.0
    deaf_from: float = 0.0
    #: By how many seconds its wall clock is wrong.
    clock_error: float = 0.0
    #: When it was asked to end.
    left_at: float = math.inf

    def __post_init__(self) -> None:
        self.context = contextvars.copy_context()
        self.context.run(PROCESS.set, self)
        self.tasks: list[asyncio.Task[Any]] = []

    def start(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Run a coroutine as this process."""
        task = self.context.copy().run(asyncio.create_task, work, name=f"{self.name}: {name}")
        self.tasks = [*(one for one in self.tasks if not one.done()), task]
        return task


class SwarmLoop(asyncio.SelectorEventLoop):
    """The loop. `network` is set before anything connects or listens."""

    network: Any

    def __init__(self, seed: int) -> None:
        self.now = 0.0
        self.turns = 0
        self._turns_now = 0
        #: How long a turn takes: whatever comes meanwhile comes in the same turn, as on a busy machine.
        self.quantum = 0.0
        self.random = random.Random(seed)
        #: Called before each turn.
        self.on_turn: Callable[[], None] | None = None
        #: By time, and by when they were set: an order that needs no comparison in Python.
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._numbers = itertools.count()
        super().__init__()

    def time(self) -> float:
        """Return virtual seconds since the run began."""
        return self.now

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Any, *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        """Call something after so many virtual seconds."""
        return self.call_at(self.now + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Any, *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        """Call something at a virtual time; of two at one time, first what was asked for first."""
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        heapq.heappush(self._timers, (when, next(self._numbers), handle))
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Leave it in the heap: it is passed over when its time comes."""

    def _run_once(self) -> None:
        self.turns += 1
        if self.on_turn is not None:
            self.on_turn()
        timers, ready = self._timers, self._ready  # type: ignore[attr-defined]
        if not ready:
            self._turns_now = 0
            while timers and timers[0][2]._cancelled:
                heapq.heappop(timers)
            if not timers:
                raise Stuck("all tasks wait and no timer is set")
            self.now = max(self.now, timers[0][0]) + self.quantum
        self._turns_now += 1
        if self._turns_now > _MOST_TURNS:
            raise Stuck(f"it spins: {_MOST_TURNS} turns at {self.now:.2f}")
        while timers and timers[0][0] <= self.now:
            ready.append(heapq.heappop(timers)[2])
        if len(ready) == 1:
            handle = ready.popleft()
            _run(handle, handle._context.get(PROCESS))
        else:
            self._run_many(ready)

    def _run_many(self, ready: Any) -> None:
        """Run callbacks in order within a process, as the seed says between processes."""
        by_process: dict[Process | None, list[Any]] = {}
        for handle in ready:
            by_process.setdefault(handle._context.get(PROCESS), []).append(handle)
        ready.clear()
        groups = list(by_process.items())
        if len(groups) > 1:
            self.random.shuffle(groups)
        for process, handles in groups:
            for handle in handles:
                _run(handle, process)

    # The network

    async def create_connection(  # type: ignore[override]
        self, factory: Any, host: Any = None, port: Any = None, **options: Any
    ) -> Any:
        """Connect in memory; `sock` is what the network has reserved."""
        if (reserved := options.get("sock")) is not None:
            host, port = reserved
        return await self.network.connect(factory, host, port)

    async def create_server(  # type: ignore[override]
        self, factory: Any, host: Any = None, port: Any = None, **_options: Any
    ) -> Any:
        """Listen in memory, at the address of the process."""
        del host
        return self.network.listen(PROCESS.get(), port, lambda _peer: factory())

    def run_in_executor(self, _executor: Any, func: Any, *args: Any) -> Any:  # type: ignore[override]
        """Call at once: a thread would not be repeatable."""
        future = self.create_future()
        future.set_result(func(*args))
        return future


def _run(handle: Any, process: Process | None) -> None:
    """Run a callback if its process lives: nothing of one that was killed runs, no cleanup either."""
    if not handle._cancelled and (process is None or process.alive):
        handle._run()


def run(seed: int, main: Callable[[SwarmLoop], Coroutine[Any, Any, None]]) -> SwarmLoop:
    """Run a coroutine on a loop of its own, and end what is left. Raises what it raises."""
    loop = SwarmLoop(seed)
    asyncio.set_event_loop(loop)
    try:
        loop.run_until_complete(main(loop))
    finally:
        loop.on_turn = None
        with contextlib.suppress(Stuck):
            _cancel_all(loop)
        asyncio.set_event_loop(None)
        loop.close()
    return loop


def _cancel_all(loop: SwarmLoop) -> None:
    for _ in range(5):
        left = [task for task in asyncio.all_tasks(loop) if not task.done()]
        for task in left:
            process = task.get_context().get(PROCESS) if hasattr(task, "get_context") else None
            if process is None or process.alive:
                task.cancel()
            else:
                task._log_destroy_pending = False  # type: ignore[attr-defined]
        loop.run_until_complete(asyncio.sleep(50.0))
    for task in asyncio.all_tasks(loop):
        task._log_destroy_pending = False  # type: ignore[attr-defined]
