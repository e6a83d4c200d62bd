"""Graceful shutdown: no connection is lost.

EndpointSlices still list a resolver that receives SIGTERM, and nodes keep sending it connections for a while
after it is removed from them. So it reports "not ready" and serves as before until no slice has listed it for
the settling time. Then it refuses new handshakes, accepts the connections left in accept queues, and closes the
listening sockets. The last connection accepted gets a moment to send its request. Held and active requests are
served to the end, up to a timeout. Responses close their connections, and idle connections are closed last.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from elasti.logger import get_logger
from elasti.resolver.ports.listening_socket import HANDSHAKE
from kubeloop.aio.wait import poll

_POLL = 0.25
_LAST_MOMENT = 1.0

_log = get_logger(__name__)


class Drainable(Protocol):
    """A worker that can be drained."""

    def is_listed(self) -> bool:
        """Whether an EndpointSlice lists this resolver."""

    def waiting(self) -> int:
        """How many connections are in accept queues."""

    def busy(self) -> int:
        """How many requests and tunnels are active or held. Idle connections do not count."""

    def stop_new_handshakes(self) -> None:
        """Refuse new handshakes; connections in accept queues are still accepted."""

    def stop_accepting(self) -> None:
        """Close every listening socket."""


async def drain(leaving: Drainable, *, settle: float, timeout: float) -> bool:
    """Drain a worker. Returns whether everything finished within the timeout."""
    try:
        async with asyncio.timeout(timeout):
            await _until_unlisted(leaving, settle)
            leaving.stop_new_handshakes()
            await asyncio.sleep(HANDSHAKE)
            await poll(lambda: not leaving.waiting(), _POLL, immediate=True)
            leaving.stop_accepting()
            await asyncio.sleep(min(settle, _LAST_MOMENT))
            await poll(lambda: not leaving.busy(), _POLL, immediate=True)
    except TimeoutError:
        _log.warning("drain timed out", requests=leaving.busy())
        leaving.stop_accepting()
        return False
    return True


async def _until_unlisted(leaving: Drainable, settle: float) -> None:
    """Wait until no slice has listed this resolver for the settling time."""
    loop = asyncio.get_running_loop()
    since = loop.time()
    while loop.time() - since < settle:
        await asyncio.sleep(min(_POLL, max(settle, 0.001)))
        if leaving.is_listed():
            since = loop.time()
