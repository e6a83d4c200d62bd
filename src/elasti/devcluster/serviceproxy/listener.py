"""One address of one Service: listens while there is somewhere to go, and refuses otherwise.

A userspace proxy can refuse a connection only by not listening. So the socket is opened when the
first backend appears and closed when the last one goes; connections that run are left alone, as
kube-proxy leaves them. An address that cannot be listened on is complained about, with the remedy.
"""

from __future__ import annotations

import asyncio
import logging
import random
from pathlib import Path
from typing import TYPE_CHECKING

from kubeloop.aio.relay import RelayEnd

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from elasti.devcluster.serviceproxy.affinity import Affinity
    from elasti.devcluster.serviceproxy.counters import Counters
    from elasti.devcluster.serviceproxy.routing import Backend, Frontend

_log = logging.getLogger(__name__)

_BACKLOG = 4096
_FIRST_PORT = Path("/proc/sys/net/ipv4/ip_unprivileged_port_start")


class PortListener:
    """Accepts connections for one frontend and relays them to its backends."""

    def __init__(
        self,
        frontend: Frontend,
        *,
        affinity: Affinity,
        counters: Counters,
        complain: Callable[[str], None] = _log.warning,
        choose: Callable[[Sequence[Backend]], Backend] = random.choice,
    ) -> None:
        self.frontend = frontend
        self._affinity = affinity
        self._counters = counters
        self._complain = complain
        self._choose = choose
        self._backends: list[Backend] = []
        self._server: asyncio.Server | None = None
        self._joining: set[asyncio.Task[None]] = set()
        self._open: set[RelayEnd] = set()

    def __repr__(self) -> str:
        state = "listening" if self._server else "refusing"
        return f"<PortListener {self.frontend.host}:{self.frontend.port} {state}, {self._backends}>"

    async def route_to(self, backends: list[Backend]) -> None:
        """Send new connections to these; listen only where there are any."""
        self._backends = backends
        if backends and self._server is None:
            await self._listen()
        elif not backends and self._server is not None:
            self._server.close()
            self._server = None

    async def close(self) -> None:
        """Stop listening and break what is open."""
        await self.route_to([])
        for task in self._joining:
            task.cancel()
        if self._joining:
            await asyncio.wait(self._joining)
        for end in list(self._open):
            end.abort()

    async def _listen(self) -> None:
        loop = asyncio.get_running_loop()
        host, port = self.frontend
        try:
            self._server = await loop.create_server(self._accept, host, port, backlog=_BACKLOG)
        except PermissionError:
            self._complain(
                f"nothing listens on {host}:{port}: ports below {_unprivileged()} take a privilege"
                " here; give the Service a higher port, start the cluster with --netns, or as root"
            )
        except OSError as error:
            self._complain(f"nothing listens on {host}:{port}: {error}")

    def _accept(self) -> RelayEnd:
        end = _ClientEnd(self._accepted, self._forget)
        self._open.add(end)
        return end

    def _forget(self, end: RelayEnd) -> None:
        self._open.discard(end)

    def _accepted(self, client: RelayEnd, peer: str) -> None:
        self._counters.accepted += 1
        backend = self._affinity.of(peer, self._backends) or (
            self._choose(self._backends) if self._backends else None
        )
        if backend is None:
            self._counters.refused += 1
            client.abort()
            return
        self._affinity.remember(peer, backend)
        task = asyncio.get_running_loop().create_task(self._join(client, backend))
        self._joining.add(task)
        task.add_done_callback(self._joining.discard)

    async def _join(self, client: RelayEnd, backend: Backend) -> None:
        loop = asyncio.get_running_loop()
        try:
            _, pod = await loop.create_connection(RelayEnd, backend.host, backend.port)
        except OSError:
            # The kernel's NAT would have let the client see the pod's own refusal.
            self._counters.refused += 1
            client.abort()
            return
        self._counters.relayed += 1
        client.join(pod)


def _unprivileged() -> int:
    """Return the first port that any user may listen on."""
    try:
        return int(_FIRST_PORT.read_text())
    except (OSError, ValueError):
        return 1024


class _ClientEnd(RelayEnd):
    """A client's end, which says that it came and that it went."""

    __slots__ = ("_accepted",)

    def __init__(
        self,
        accepted: Callable[[RelayEnd, str], None],
        lost: Callable[[RelayEnd], None],
    ) -> None:
        super().__init__(lambda: lost(self))
        self._accepted = accepted

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        peer = transport.get_extra_info("peername")
        self._accepted(self, peer[0] if peer else "")
