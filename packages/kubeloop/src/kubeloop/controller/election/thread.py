"""Leader election on a thread, a loop and a connection of its own.

A lease of 15 s is lost when the loop that should renew it is busy for 10: parsing a large list, a
handler that blocks. So the election runs elsewhere, and only its outcome comes to the loop of the
work. The callbacks run on that loop; `run` behaves as `LeaderElector.run` does.

The tenure is shared and can be read from either side. The work's side watches it too: if the
election's thread itself should hang, or the whole process was paused, leadership ends here as soon
as this loop gets control again, without waiting for the other side to say so.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import threading
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, TypeAlias

from kubeloop.aio.tasks import BackgroundTasks, finish
from kubeloop.controller.election.elector import (
    LeaderCallbacks,
    LeaderElector,
    Work,
    call_report,
    lead,
)
from kubeloop.controller.election.lease_keeper import LeaseClient, Tenure

if TYPE_CHECKING:
    from kubeloop.controller.election.lease import ElectionConfig

LeaseFactory: TypeAlias = Callable[[], AbstractAsyncContextManager[LeaseClient]]

_log = logging.getLogger(__name__)


class ElectionThread:
    """Elects apart from the loop that works.

    `lease` is called on the new thread's loop, and its context spans the election there: open the
    connection inside it, so that nothing is shared between loops.
    """

    def __init__(self, *, config: ElectionConfig, lease: LeaseFactory) -> None:
        self._config = config
        self._lease = lease
        self._tenure = Tenure(time.monotonic)
        self._elector: LeaderElector | None = None

    @property
    def is_leader(self) -> bool:
        """Whether we lead now; exact at the moment of asking, from any thread. Not fencing."""
        return self._tenure.is_held

    @property
    def former_renewal(self) -> str:
        """When the lease was last renewed before it became ours, as it says; "" for never."""
        return self._elector.former_renewal if self._elector is not None else ""

    def check(self, tolerance: float = 20.0) -> None:
        """Raise RuntimeError if the lease names us but was not renewed for too long."""
        if self._elector is not None:
            self._elector.check(tolerance)

    async def run(self, callbacks: LeaderCallbacks) -> None:
        """Campaign until elected, lead until the lease is lost. Cancel to stop and release."""
        async with BackgroundTasks() as reports:
            side = _WorkSide(callbacks, reports)
            thread = _LoopThread(lambda: self._elect(side), on_end=side.wake)
            thread.start()
            try:
                await side.follow(self._tenure)
            finally:
                await thread.stop(patience=2 * self._config.renew_deadline)
                self._tenure.end()
                side.stopped()
            if thread.error is not None:
                raise thread.error

    async def _elect(self, side: _WorkSide) -> None:
        async with self._lease() as lease:
            self._elector = LeaderElector(
                config=self._config, lease=lease, monotonic=time.monotonic, tenure=self._tenure
            )
            await self._elector.run(side.callbacks_for_thread())


class _WorkSide:
    """The election as the loop of the work sees it."""

    def __init__(self, callbacks: LeaderCallbacks, reports: BackgroundTasks) -> None:
        self._callbacks = callbacks
        self._reports = reports
        self._loop = asyncio.get_running_loop()
        self._elected = asyncio.Event()
        self._over = asyncio.Event()
        self._stop_reported = False

    async def follow(self, tenure: Tenure) -> None:
        """Wait to be elected, then work until that ends."""
        await self._elected.wait()
        if not self._over.is_set():
            await lead(self._callbacks.on_started(), self._watch(tenure), on_lost=self.stopped)

    def stopped(self) -> None:
        """Report once that we no longer lead."""
        if not self._stop_reported:
            self._stop_reported = True
            self._callbacks.on_stopped()

    def wake(self) -> None:
        """Wake the waiters: the thread has ended, nothing more will come from it."""
        self._over.set()
        self._elected.set()

    def callbacks_for_thread(self) -> LeaderCallbacks:
        """Return the callbacks that the election's thread may call."""
        return LeaderCallbacks(
            on_started=self._announce,
            on_stopped=lambda: self._post(self._over.set),
            on_new_leader=lambda holder: self._post(functools.partial(self._report, holder)),
        )

    async def _watch(self, tenure: Tenure) -> None:
        while tenure.is_held and not self._over.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(tenure.until - time.monotonic()):
                    await self._over.wait()

    async def _announce(self) -> None:
        self._post(self._elected.set)

    def _report(self, holder: str) -> None:
        if self._callbacks.on_new_leader is not None and not self._stop_reported:
            report = call_report(self._callbacks.on_new_leader, holder)
            self._reports.start(report, name="new leader report")

    def _post(self, call: Callable[[], object]) -> None:
        self._loop.call_soon_threadsafe(call)


class _LoopThread:
    """A coroutine on a loop on a thread; started, stopped and awaited from the caller's loop."""

    def __init__(self, main: Callable[[], Work], *, on_end: Callable[[], None]) -> None:
        self._main = main
        self._on_end = on_end
        self._owner = asyncio.get_running_loop()
        self._ended = asyncio.Event()
        self._stopping = False
        self._cancel: Callable[[], object] | None = None
        self._thread = threading.Thread(target=self._run, name="leader election", daemon=True)
        self.error: BaseException | None = None

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    async def stop(self, *, patience: float) -> None:
        """Cancel the coroutine and wait until the thread is gone, whatever happens meanwhile."""
        self._stopping = True
        if self._cancel is not None:
            with contextlib.suppress(RuntimeError):  # its loop may have closed just now
                self._cancel()
        waiting = asyncio.create_task(self._wait(patience), name="wait for the election's thread")
        await finish([waiting], cancel=False)

    async def _wait(self, patience: float) -> None:
        deadline = self._owner.time() + patience
        while not self._ended.is_set():
            try:
                async with asyncio.timeout_at(deadline):
                    await self._ended.wait()
            except asyncio.CancelledError:
                continue
            except TimeoutError:
                _log.error("the election's thread did not end in %g s; it is left alone", patience)
                return
        self._thread.join()

    def _run(self) -> None:
        try:
            # asyncio's own loop whatever the policy is: its time is exactly the monotonic clock.
            with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
                runner.run(self._until_stopped())
        except asyncio.CancelledError:
            pass
        except BaseException as error:  # noqa: BLE001 -- raised again where the election was run
            self.error = error
        finally:
            self._owner.call_soon_threadsafe(self._end)

    async def _until_stopped(self) -> None:
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None
        # Set before the flag is read, as `stop` does it the other way round: one of them sees.
        self._cancel = functools.partial(loop.call_soon_threadsafe, task.cancel)
        if not self._stopping:
            await self._main()

    def _end(self) -> None:
        self._ended.set()
        self._on_end()
