"""The reflector's supervisor: a stuck reflector is replaced, store and handlers stay.

A reflector recovers by itself from whatever a server or a network can do to it. What is left is
the unforeseen: a wait for something that never comes, or a defect that ends it. The new reflector
begins with a list, at no older version than the last one had seen, so that nothing goes back in
time.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Generic, TypeVar

from kubeloop.aio.tasks import finish

if TYPE_CHECKING:
    from collections.abc import Callable

    from kubeloop.aio.backoff import DelaySequence
    from kubeloop.informer.reflector.reflector import Reflector


T = TypeVar("T")

_log = logging.getLogger(__name__)


class ReflectorSupervisor(Generic[T]):
    """Runs what `make` makes, until cancelled.

    With `survives`, a reflector that failed is replaced too, after a delay; otherwise its error
    ends this. `restarts` counts the replacements.
    """

    def __init__(
        self, make: Callable[[], Reflector[T]], *, name: str, survives: bool, delays: DelaySequence
    ) -> None:
        self._make = make
        self._name = name
        self._survives = survives
        self._delays = delays
        self._wanted = asyncio.Event()
        self.reflector: Reflector[T] | None = None
        self.restarts = 0

    def restart(self, reason: str) -> None:
        """Replace the reflector that runs."""
        _log.warning("%s: reflector is replaced: %s", self._name, reason)
        self._wanted.set()

    def relist(self, reason: Exception) -> None:
        """Let the reflector that runs list again."""
        if self.reflector is not None:
            self.reflector.relist(reason)

    async def run(self) -> None:
        """Reflect until cancelled. Raises what ended a reflector, unless it survives that."""
        while True:
            self._begin()
            try:
                await self._run_one()
            except Exception as error:
                if not self._survives:
                    raise
                delay = self._delays.next_delay()
                _log.exception(
                    "%s: reflector failed, replaced in %.1f s", self._name, delay, exc_info=error
                )
                await asyncio.sleep(delay)
            self.restarts += 1

    def _begin(self) -> None:
        new, old = self._make(), self.reflector
        if old is not None:
            new.last_version = old.last_version
        self.reflector = new
        self._wanted.clear()

    async def _run_one(self) -> None:
        assert self.reflector is not None
        running = asyncio.create_task(self.reflector.run(), name=f"reflector {self._name}")
        wanted = asyncio.create_task(self._wanted.wait(), name=f"renewal {self._name}")
        try:
            await asyncio.wait({running, wanted}, return_when=asyncio.FIRST_COMPLETED)
            failed = running.done()
        finally:
            await finish([running, wanted])
        if failed:
            running.result()
