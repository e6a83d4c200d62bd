"""Leaving without losing anybody.

A resolver that is told to stop is still in slices, and nodes still send it connections for a while
after it is out of them. So it says that it is not ready, and goes on as before until no slice has
named it for the settling time. Then it lets no handshake begin, accepts what the kernel holds for it,
and stops to listen. Whoever was accepted last has a moment to speak. What it holds or passes on is served to the
end, within a bound; answers end their connections, and those that rest are closed at the end.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

from elasti.resolver.doors import HANDSHAKE
from kubeloop.aio.wait import poll

_LOOK_EVERY = 0.25
_LAST_MOMENT = 1.0

_log = logging.getLogger(__name__)


class Drained(Protocol):
    """What leaves."""

    def is_listed(self) -> bool:
        """Whether some slice points here."""

    def waiting(self) -> int:
        """How many connections the kernel holds that were not accepted."""

    def busy(self) -> int:
        """How many requests and tunnels are under way or wait; connections that rest are none."""

    def shut(self) -> None:
        """Let nobody else come; whoever has come is accepted."""

    def stop_accepting(self) -> None:
        """Close every listening socket."""


async def drain(leaving: Drained, *, settle: float, timeout: float) -> bool:
    """Leave; returns whether everything under way ended by itself within the timeout."""
    try:
        async with asyncio.timeout(timeout):
            await _until_unlisted(leaving, settle)
            leaving.shut()
            await asyncio.sleep(HANDSHAKE)
            await poll(lambda: not leaving.waiting(), _LOOK_EVERY, immediate=True)
            leaving.stop_accepting()
            await asyncio.sleep(min(settle, _LAST_MOMENT))
            await poll(lambda: not leaving.busy(), _LOOK_EVERY, immediate=True)
    except TimeoutError:
        _log.warning("leaving while %d requests are under way", leaving.busy())
        leaving.stop_accepting()
        return False
    return True


async def _until_unlisted(leaving: Drained, settle: float) -> None:
    """Wait until no slice has named us for the settling time."""
    loop = asyncio.get_running_loop()
    since = loop.time()
    while loop.time() - since < settle:
        await asyncio.sleep(min(_LOOK_EVERY, max(settle, 0.001)))
        if leaving.is_listed():
            since = loop.time()
