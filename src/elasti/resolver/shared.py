"""The shared port's listener: finds the front of whom a request is for, and keeps one for each."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from elasti.resolver.doors import bound_socket, not_accepted, shut
from elasti.resolver.listeners import BACKLOG
from elasti.resolver.proxy.ports import PortProtocol
from elasti.resolver.shared_connection import OneRequest, SharedConnection

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterable

    from elasti.resolver.identify import HostRules
    from elasti.resolver.objects import ServiceKey
    from elasti.resolver.proxy.front import DataPath, Front
    from elasti.resolver.proxy.reading import Reading
    from elasti.resolver.proxy.target import Asked
    from elasti.resolver.service import Port
    from elasti.resolver.services import Registry


class SharedPort:
    """Listens on the shared port; a `Directory` for its connections."""

    def __init__(
        self, *, path: DataPath, registry: Registry, rules: HostRules, header: str = "Host"
    ) -> None:
        self._path = path
        self._registry = registry
        self._rules = rules
        self._header = header.lower().encode()
        self._fronts: dict[Port, tuple[ServiceKey, Front]] = {}
        # Connections of which nobody knows yet whom they are for; a Service's own come from it.
        self._share = path.allowances.clients.share()
        self._server: asyncio.AbstractServer | None = None
        self._sock: socket.socket | None = None
        self.found = 0
        self.unknown = 0

    async def start(self, host: str | None, port: int, *, reuse_port: bool = False) -> int:
        """Listen; returns the port."""
        sock = self._sock = bound_socket(host, port, reuse_port=reuse_port)
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._make, sock=sock, backlog=BACKLOG)
        return int(sock.getsockname()[1])

    def shut(self) -> None:
        """Let nobody else come; whoever has come is accepted."""
        if self._sock is not None:
            shut(self._sock)

    def close(self) -> None:
        """Stop listening; connections go on."""
        if self._server is not None:
            self._server.close()
            self._server = self._sock = None

    def waiting(self) -> int:
        """How many connections the kernel holds that were not accepted yet."""
        return not_accepted(self._sock) if self._sock is not None else 0

    def break_all(self) -> None:
        """Break every connection."""
        for _, front in self._fronts.values():
            front.close()
        self._fronts.clear()
        self._share.close()

    def fronts(self) -> Iterable[tuple[ServiceKey, Front]]:
        """Return every front, with its Service."""
        return self._fronts.values()

    def protocol_for(self, asked: Asked) -> Reading | None:
        """Return the protocol that goes on with a connection; None for nobody."""
        value = asked.field(self._header) if self._header != b"host" else None
        text = (value or asked.host or b"").decode("latin-1")
        key = self._rules.service_of(text, self._registry)
        port = self._registry.default_port(key, _number(text)) if key is not None else None
        if key is None or port is None:
            self.unknown += 1
            return None
        self.found += 1
        return self._front(key, port)()

    def _front(self, key: ServiceKey, port: Port) -> Front:
        known = self._fronts.get(port)
        if known is None:
            self._forget_idle()
            front = self._path.front(OneRequest(port), PortProtocol.HTTP, owner=key)
            known = self._fronts[port] = (key, front)
        return known[1]

    def _forget_idle(self) -> None:
        """Drop the fronts that have no connections."""
        for port, (_, front) in list(self._fronts.items()):
            if not front.connections:
                del self._fronts[port]
                front.close()

    def _make(self) -> Reading:
        path = self._path
        if not self._share.take():
            return path.refusals.refuse(is_http=True)
        return SharedConnection(
            directory=self, sweeper=path.sweeper, reads=path.buffer, share=self._share
        )


def _number(host: str) -> int | None:
    """Return the port that a Host value names."""
    _, found, port = host.rpartition(":")
    return int(port) if found and port.isdecimal() and len(port) <= 5 else None
