"""Signals, at the edge of a program and nowhere else."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from typing import TYPE_CHECKING, Protocol

from kubeloop.aio.tasks import finish

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_log = logging.getLogger(__name__)


class Stoppable(Protocol):
    """What a manager offers."""

    async def run(self) -> None:
        """Run until stopped."""

    def stop(self) -> None:
        """Ask `run` to end."""


async def run_until_signal(
    manager: Stoppable, signals: Sequence[signal.Signals] = (signal.SIGTERM, signal.SIGINT)
) -> None:
    """Run the manager; the first signal stops it in order, the second one at once.

    Raises what `run` raises; after a second signal that is CancelledError.
    """
    running = asyncio.create_task(manager.run(), name="manager")
    with _handled(signals, _Escalation(manager.stop, running.cancel)):
        try:
            await asyncio.wait({running})
        finally:
            await finish([running])
    running.result()


class _Escalation:
    """Calls the first function for the first signal, the second one from then on."""

    def __init__(self, first: Callable[[], object], then: Callable[[], object]) -> None:
        self._next = first
        self._then = then

    def __call__(self, number: signal.Signals) -> None:
        _log.info("stopping: got %s", number.name)
        self._next()
        self._next = self._then


@contextlib.contextmanager
def _handled(
    signals: Sequence[signal.Signals], handler: Callable[[signal.Signals], None]
) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    for number in signals:
        loop.add_signal_handler(number, handler, number)
    try:
        yield
    finally:
        for number in signals:
            loop.remove_signal_handler(number)
