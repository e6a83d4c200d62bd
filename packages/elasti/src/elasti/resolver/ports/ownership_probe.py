"""The operator's ownership probe on ports that do not speak HTTP.

Before the operator publishes a port, it asks which Service owns it: in one fixed form, as soon as it is
connected. On a port where servers may speak first, a connection must not go to a pod before it is clear that it
is not a probe. A few milliseconds suffice, since a probe is already on its way when the connection is accepted.
On HTTP ports the probe is an ordinary request.
"""

from __future__ import annotations

import asyncio
from typing import cast

from elasti.api.wire import PROBE_LIMIT, ProbeIdentity, could_be_probe, is_probe, probe_answer
from elasti.resolver.projections import ServiceKey
from elasti.resolver.proxy.port_handler import PortHandler
from elasti.resolver.proxy.tcp import TcpConnection
from elasti.resolver.proxy.transport import BufferedClientProtocol

_MOMENT = 0.01
# A probe that began must also complete.
_PATIENCE = 1.0


class OwnershipProbeConnection(BufferedClientProtocol):
    """A connection that may be a probe. Its handler has admitted it."""

    __slots__ = ("_buffer", "_eof", "_handler", "_key", "_timer", "_transport")

    def __init__(self, key: ServiceKey, handler: PortHandler) -> None:
        self._key = key
        self._handler = handler
        self._buffer = b""
        self._eof = False
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait a moment for a probe."""
        self._transport = cast("asyncio.Transport", transport)
        self._handler.enters(self._transport)
        self._handler.statistics.undecided += 1
        self._timer = asyncio.get_running_loop().call_later(_MOMENT, self._pass_on)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Read at most as much as the handler would keep."""
        return self._handler.buffer.some(self._handler.limits.held_bytes - len(self._buffer))

    def buffer_updated(self, nbytes: int) -> None:
        """Process the bytes read."""
        self.data_received(self._handler.buffer.taken(nbytes))

    def data_received(self, data: bytes) -> None:
        """Answer a probe; pass everything else on."""
        self._buffer += data
        if not could_be_probe(self._buffer) or len(self._buffer) > PROBE_LIMIT:
            self._pass_on()
        elif is_probe(self._buffer) and self._buffer.endswith(b"\r\n\r\n"):
            self._answer()
        else:
            self._stop_timer()
            self._timer = asyncio.get_running_loop().call_later(_PATIENCE, self._pass_on)

    def eof_received(self) -> bool:
        """Let the client's protocol decide about half-closed connections."""
        if self._transport is not None:
            self._eof = True
            self._pass_on()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection ended before it was passed on."""
        transport = self._release_transport()
        if transport is not None:
            self._handler.leaves(transport)

    def _answer(self) -> None:
        assert self._transport is not None
        self._stop_timer()
        self._transport.write(probe_answer(ProbeIdentity(self._key.namespace, self._key.service)))
        self._transport.close()

    def _pass_on(self) -> None:
        if self._transport is None or self._transport.is_closing():
            self._stop_timer()
            return
        transport = self._release_transport()
        assert transport is not None
        client = TcpConnection(self._handler)
        transport.set_protocol(client)
        client.take_over(transport, self._buffer, eof=self._eof)

    def _release_transport(self) -> asyncio.Transport | None:
        self._stop_timer()
        transport, self._transport = self._transport, None
        if transport is not None:
            self._handler.statistics.undecided -= 1
        return transport

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
