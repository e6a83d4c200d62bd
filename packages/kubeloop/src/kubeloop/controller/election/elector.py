"""Leader election on an event loop: campaign, lead, stop, and report it.

`run` ends in one of three ways: the lease was lost (it returns), the leader's work failed (it
raises that), or it was cancelled (it re-raises). Cancelled, it ends the work first, still renewing,
and only then releases the lease. A lost lease leaves no time for that: `on_stopped` is called at
once, then the work is cancelled and waited for.

Whenever this loop gets control it reads the clock before anything else: a process that was paused,
or a loop that was blocked, past the renew deadline stops leading instead of renewing what may be
another process's by now. It is safer still to elect apart from the work: `thread.py`.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import inspect
import logging
import math
import random
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from kubeloop.aio.backoff import Random, jittered
from kubeloop.aio.clock import Clock, SystemClock
from kubeloop.aio.tasks import BackgroundTasks, finish
from kubeloop.controller.election.lease_keeper import LeaseClient, LeaseKeeper, Monotonic, Tenure

if TYPE_CHECKING:
    from kubeloop.controller.election.lease import ElectionConfig


LeaderReport: TypeAlias = Callable[[str], Awaitable[None] | None]
Work: TypeAlias = Coroutine[Any, Any, None]

_ACQUIRE_JITTER = 1.2
# No request ends in less. What rounding leaves of a tenure may be less than a loop can wait for, too,
# and trying on within it would be trying without end.
_TOO_SHORT_TO_RENEW = 0.001
_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LeaderCallbacks:
    """The leader's work, and callbacks.

    `on_started` runs as a task while we lead and is cancelled when that ends; it may return early.
    `on_stopped` is called at every end of a run, even if we never led. `on_new_leader` is called
    for every change of the holder, ourselves included; "" means that the lease became free.
    """

    on_started: Callable[[], Work]
    on_stopped: Callable[[], None]
    on_new_leader: LeaderReport | None = None


class Election(Protocol):
    """A way to be elected: on the caller's loop, or on a thread of its own."""

    @property
    def is_leader(self) -> bool:
        """Whether we lead now. Not fencing: what was sent before may arrive later."""

    def check(self) -> None:
        """A health check: raises if we seem to hold a lease that is long over."""

    async def run(self, callbacks: LeaderCallbacks) -> None:
        """Campaign until elected, lead until the lease is lost. Cancel to stop."""


class LeaderElector:
    """Elects on the loop that runs it.

    `monotonic` is the clock of all its deadlines; the default is the running loop's time.
    """

    def __init__(
        self,
        *,
        config: ElectionConfig,
        lease: LeaseClient,
        monotonic: Monotonic | None = None,
        tenure: Tenure | None = None,
        clock: Clock | None = None,
        rand: Random = random.random,
    ) -> None:
        self._config = config
        self._now = monotonic or _loop_time
        self._rand = rand
        self._tenure = tenure or Tenure(self._now)
        self._keeper = LeaseKeeper(
            config=config,
            lease=lease,
            tenure=self._tenure,
            now=self._now,
            clock=clock or SystemClock(),
        )
        self._reported = ""

    def __repr__(self) -> str:
        return f"<LeaderElector {self._config.identity}: holder {self.holder!r}>"

    @property
    def is_leader(self) -> bool:
        """Whether the lease is ours by our last successful write."""
        return self._tenure.is_held

    @property
    def holder(self) -> str:
        """The identity in the last record seen; "" if the lease is free, or not seen yet."""
        return self._keeper.view.record.holder

    @property
    def former_renewal(self) -> str:
        """When the lease was last renewed before it became ours, as it says; "" for never."""
        return self._keeper.former.renewed

    def check(self, tolerance: float = 20.0) -> None:
        """Raise RuntimeError if the lease names us but was not renewed for too long."""
        duration = self._config.lease_duration
        if self._keeper.view.is_stale(self._now(), lease_duration=duration, tolerance=tolerance):
            raise RuntimeError(
                f"lease {self._config.namespace}/{self._config.name} is ours but was not renewed"
                f" for more than {duration + tolerance:g} s"
            )

    async def run(self, callbacks: LeaderCallbacks) -> None:
        """Campaign until elected, lead until the lease is lost. Cancel to stop and release."""
        stopped = _Once(callbacks.on_stopped)
        try:
            async with BackgroundTasks() as reports:
                report = functools.partial(self._report_leader, callbacks, reports)
                await self._acquire(report)
                await self._lead(callbacks.on_started(), report, stopped)
        finally:
            self._tenure.end()
            stopped()

    async def _acquire(self, report: Callable[[], None]) -> None:
        while True:
            self._tenure.end()
            await self._keeper.attempt(until=math.inf)
            report()
            if self._tenure.is_held:
                return
            pause = jittered(self._config.retry_period, _ACQUIRE_JITTER, self._rand)
            # The moment at which another's lease ends is known: no time is lost after it.
            left = self._keeper.view.expires_at - self._now()
            await asyncio.sleep(min(pause, max(left, _TOO_SHORT_TO_RENEW)) if left > 0 else pause)

    async def _lead(self, work: Work, report: Callable[[], None], stopped: _Once) -> None:
        _log.info("%s leads", self._config.identity)
        try:
            await lead(work, self._renew(report), on_lost=stopped)
        finally:
            if self._tenure.is_held and self._config.release_on_cancel:
                await self._keeper.free()

    async def _renew(self, report: Callable[[], None]) -> None:
        """Return when the lease is lost."""
        config, renewed = self._config, True
        while (left := self._tenure.until - self._now()) > _TOO_SHORT_TO_RENEW:
            pause = (config.renew_period if renewed else 0.0) or config.retry_period
            await asyncio.sleep(min(pause, left))
            if self._tenure.is_held:
                until = self._tenure.until
                await self._keeper.attempt(until=until)
                renewed = self._tenure.until > until
                report()
        _log.warning("%s no longer leads: the lease was not renewed", self._config.identity)

    def _report_leader(self, callbacks: LeaderCallbacks, reports: BackgroundTasks) -> None:
        if self.holder == self._reported:
            return
        self._reported = self.holder
        if callbacks.on_new_leader is not None:
            reports.start(
                call_report(callbacks.on_new_leader, self.holder), name="new leader report"
            )


class _Once:
    """A callback that is called at most once."""

    def __init__(self, func: Callable[[], None]) -> None:
        self._func: Callable[[], None] | None = func

    def __call__(self) -> None:
        func, self._func = self._func, None
        if func is not None:
            func()


async def lead(work: Work, keep: Work, *, on_lost: Callable[[], None]) -> None:
    """Do the leader's work while `keep`, which keeps the lease, runs; raises what either raises.

    When `keep` ends the lease is lost: `on_lost` is called, then the work is cancelled. When the
    caller is cancelled, or the work fails, the work ends first and `keep` runs until it has.
    """
    keeping = asyncio.create_task(keep, name="keep the lease")
    working = asyncio.create_task(work, name="work of the leader")
    try:
        await asyncio.wait({keeping, working}, return_when=asyncio.FIRST_COMPLETED)
        failed = working.done() and not working.cancelled() and working.exception() is not None
        if not failed and not keeping.done():
            await asyncio.wait({keeping})
        if keeping.done():
            on_lost()
    finally:
        try:
            await finish([working])
        finally:
            await finish([keeping])
    for task in (keeping, working):
        if not task.cancelled():
            task.result()


async def call_report(report: LeaderReport, holder: str) -> None:
    """Call a plain or an `async` report."""
    result = report(holder)
    if inspect.isawaitable(result):
        await result


def _loop_time() -> float:
    return asyncio.get_running_loop().time()
