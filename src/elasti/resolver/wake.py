"""Asks for a Service to be woken, for as long as somebody waits for it and no pod answers.

One request is in flight for a Service at a time. It is repeated with growing pauses, whatever the
answer was: the operator's "scaling" is a promise, a pod that answers is the proof. When the last pod
that answered goes while others wait, the pause ends at once.

An operator that cannot be reached must not lose the wish: it is written onto the ElastiService as an
annotation, where whoever leads next finds it.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Protocol

from elasti.api.wire import WakeOutcome
from kubeloop.aio.backoff import Backoff
from kubeloop.aio.tasks import finish

if TYPE_CHECKING:
    from collections.abc import Callable

    from elasti.resolver.objects import ServiceKey

# After an answer the pods need time; after a failure the next attempt is for another operator.
_AFTER_ANSWER = Backoff(duration=1.0, factor=2.0, jitter=0.2, cap=15.0)
_AFTER_FAILURE = Backoff(duration=0.1, factor=2.0, jitter=0.2, cap=5.0)
# A pod that comes and goes must not become a flood.
_CLOSEST = 0.1
# The annotation is written at most so often, in seconds, for one Service.
DURABLE_EVERY = 10.0

_log = logging.getLogger(__name__)


class OperatorUnreachable(Exception):
    """No operator answered, or not as one does."""


class Operator(Protocol):
    """Who wakes."""

    async def wake(self, key: ServiceKey, *, count: int) -> WakeOutcome:
        """Ask once. Raises OperatorUnreachable."""


class DurableWish(Protocol):
    """Where a wish outlives the operator."""

    async def wish(self, key: ServiceKey) -> None:
        """Write that a Service should wake. Raises OperatorUnreachable where it cannot."""


class Waker:
    """Wakes one Service. `waiting` tells how many wait for a pod while none answers."""

    def __init__(
        self,
        key: ServiceKey,
        *,
        operator: Operator,
        durable: DurableWish,
        waiting: Callable[[], int],
    ) -> None:
        self._key = key
        self._operator = operator
        self._durable = durable
        self._waiting = waiting
        self._again = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._durable_at: float | None = None

    def __repr__(self) -> str:
        return f"<Waker {self._key}{' asking' if self._task is not None else ''}>"

    def need(self) -> None:
        """Somebody waits and no pod answers: begin to ask, if nobody does yet."""
        if self._task is None and self._waiting():
            loop = asyncio.get_running_loop()
            self._task = loop.create_task(self._run(), name=f"wake {self._key}")
            self._task.add_done_callback(self._ended)

    def at_once(self) -> None:
        """Somebody begins to wait, or the last pod has gone: ask without waiting for a pause."""
        self._again.set()
        self.need()

    async def aclose(self) -> None:
        """Stop asking."""
        if self._task is not None:
            await finish([self._task])

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("asking for %s to wake failed", self._key, exc_info=error)

    async def _run(self) -> None:
        try:
            await self._ask_until_answered()
        finally:
            # In the same turn of the loop as the last look at who waits: whoever comes after it
            # must find that nobody asks.
            self._task = None

    async def _ask_until_answered(self) -> None:
        answered, failed = _AFTER_ANSWER.start(), _AFTER_FAILURE.start()
        while count := self._waiting():
            self._again.clear()
            began = asyncio.get_running_loop().time()
            try:
                is_answered = await self._ask(count)
            except Exception:  # noqa: BLE001 -- logged; those who wait must not wait for a defect
                _log.exception("asking for %s to wake failed; it is asked again", self._key)
                is_answered = False
            if is_answered:
                failed.reset()
            await self._rest((answered if is_answered else failed).next_delay(), began)

    async def _ask(self, count: int) -> bool:
        """Ask once; returns whether an operator answered. Who cannot act has the wish in writing."""
        try:
            outcome = await self._operator.wake(self._key, count=count)
        except OperatorUnreachable as error:
            _log.warning("the operator cannot be asked to wake %s: %s", self._key, error)
            await self._make_durable()
            return False
        if outcome is WakeOutcome.UNAVAILABLE:
            await self._make_durable()
        return True

    async def _rest(self, pause: float, began: float) -> None:
        """Wait for the pause to end, or to be ended; never ask in quick succession."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(pause):
                await self._again.wait()
        except TimeoutError:
            return
        await asyncio.sleep(max(began + _CLOSEST - loop.time(), 0))

    async def _make_durable(self) -> None:
        now = asyncio.get_running_loop().time()
        if self._durable_at is not None and now - self._durable_at < DURABLE_EVERY:
            return
        try:
            await self._durable.wish(self._key)
        except OperatorUnreachable as error:
            _log.warning("the wish to wake %s cannot be written: %s", self._key, error)
        else:
            self._durable_at = now
