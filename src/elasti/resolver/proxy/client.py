"""A client's HTTP/1 connection: requests one after the other, each an exchange with a pod.

Bytes are parsed at heads and counted in bodies; everything else passes as it came. Requests that are
pipelined behind the running one wait in the buffer, which stops the reading when it is full. A bad
head gets its answer and the connection is closed: what follows a bad head cannot be trusted.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

from elasti.resolver.proxy.answers import refusal_response
from elasti.resolver.proxy.exchange import Exchange
from elasti.resolver.proxy.framing import FramingError
from elasti.resolver.proxy.heads import HeadError, ResponseHead, parse_request
from elasti.resolver.proxy.rewrite import Forwarder, response_head
from elasti.resolver.proxy.tunnel import Tunnel

if TYPE_CHECKING:
    from elasti.resolver.proxy.pod import PodConnection
    from elasti.resolver.proxy.pool import Pool
    from elasti.resolver.proxy.target import Refusal, Target

_BUFFER_LIMIT = 64 * 1024


class ClientConnection(asyncio.Protocol):
    """One client's connection on a port whose target is known."""

    __slots__ = (
        "_buffer", "_exchange", "_finished", "_forwarder", "_paused", "_pool", "_target", "_transport",
        "_tunnel", "last_bytes",
    )  # fmt: skip

    def __init__(self, target: Target, pool: Pool) -> None:
        self._target = target
        self._pool = pool
        self._transport: asyncio.Transport | None = None
        self._forwarder = Forwarder("unknown")
        self._buffer = b""
        self._exchange: Exchange | None = None
        self._tunnel: Tunnel | None = None
        self._finished = False
        self._paused = False
        self.last_bytes = 0.0

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport and the peer's address."""
        # uvloop's transports have the interface, not the base class.
        self._transport = cast("asyncio.Transport", transport)
        peer = transport.get_extra_info("peername")
        self._forwarder = Forwarder(peer[0] if peer else "unknown")

    def data_received(self, data: bytes) -> None:
        """Feed the running exchange, or start the next."""
        if self._tunnel is not None:
            self._tunnel.from_client(data)
            return
        buffer = self._buffer + data if self._buffer else data
        try:
            self._buffer = self._consume(buffer)
        except HeadError as error:
            self._refuse(error.status, str(error))
        except FramingError as error:
            self._refuse(400, str(error))
        if len(self._buffer) > _BUFFER_LIMIT:
            self._flow(flowing=False)

    def eof_received(self) -> bool:
        """The client sends no more; the running answer is still wanted."""
        if self._tunnel is not None:
            return self._tunnel.client_eof()
        self._finished = True
        return self._exchange is not None and self._exchange.body.done

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone: free everything that was held for it."""
        del exc
        self._transport = None
        if self._exchange is not None:
            exchange, self._exchange = self._exchange, None
            exchange.abandon()
        if self._tunnel is not None:
            self._tunnel.client_lost()

    def pause_writing(self) -> None:
        """The client is slow to read."""
        pod = self._pod()
        if pod is not None:
            pod.pause()

    def resume_writing(self) -> None:
        """The client reads again."""
        pod = self._pod()
        if pod is not None:
            pod.resume()

    def _pod(self) -> PodConnection | None:
        if self._tunnel is not None:
            return self._tunnel.pod
        return self._exchange.pod if self._exchange is not None else None

    # requests

    def _consume(self, data: bytes) -> bytes:
        """Use up what can be used; return the rest."""
        exchange = self._exchange
        if exchange is not None:
            if exchange.body.done:
                return data
            return data[exchange.feed(data) :]
        if self._finished or not data:
            return b""
        head = parse_request(data)
        if head is None:
            return data
        if local := self._target.answer_locally(head):
            return self._answer(local, data[head.end :])
        self._target.arrived()
        exchange = Exchange(
            client=self,
            target=self._target,
            pool=self._pool,
            head=head,
            wire=self._forwarder.request_head(head),
        )
        self._exchange = exchange
        rest = data[head.end :]
        if rest and not exchange.body.done:
            rest = rest[exchange.feed(rest) :]
        exchange.start()
        return rest

    def _answer(self, local: bytes, rest: bytes) -> bytes:
        assert self._transport is not None
        self._transport.write(local)
        return self._consume(rest)

    def _refuse(self, status: int, words: str) -> None:
        self._buffer, self._finished = b"", True
        if self._exchange is not None:
            exchange, self._exchange = self._exchange, None
            exchange.abandon()
        self._close_with(refusal_response(status, words, retry=False), status)

    def _close_with(self, response: bytes, status: int) -> None:
        if self._transport is not None:
            self._target.answered(status)
            self._transport.write(response)
            self._transport.close()

    def _flow(self, *, flowing: bool) -> None:
        if self._transport is None or self._transport.is_closing() or flowing != self._paused:
            return
        self._paused = not flowing
        if flowing:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    # ClientSide

    def exchange_interim(self, raw: bytes) -> None:
        """Send a 1xx response; HTTP/1.0 clients do not know them."""
        if self._transport is not None and self._exchange is not None and self._exchange.head.minor:
            self._transport.write(raw)

    def exchange_head(self, head: ResponseHead, body: bytes) -> None:
        """Send the final head and the first bytes of the body."""
        exchange = self._exchange
        if self._transport is None or exchange is None:
            return
        self._finished = self._finished or not self._stays_open(exchange, head)
        wire = response_head(
            head,
            close=self._finished,
            keep_alive_1_0=exchange.head.minor == 0,
            extra=_held_fields(exchange),
        )
        self._target.answered(head.status)
        self._transport.write(wire + body if body else wire)

    def exchange_body(self, data: bytes) -> None:
        """Send more of the body."""
        if self._transport is not None:
            self._transport.write(data)

    def exchange_done(self, *, keep: bool) -> None:
        """The answer is complete: go on with what was pipelined, or close."""
        self._exchange = None
        if self._transport is None:
            return
        if self._finished or not keep:
            self._transport.close()
            return
        self._flow(flowing=True)
        if self._buffer:
            data, self._buffer = self._buffer, b""
            self.data_received(data)

    def exchange_switched(self, pod: PodConnection, head: ResponseHead, rest: bytes) -> None:
        """Become a tunnel: the upgrade was agreed on."""
        exchange, self._exchange = self._exchange, None
        if self._transport is None or exchange is None:
            pod.drop()
            return
        wire = response_head(head, close=False, keep_alive_1_0=False, extra=_held_fields(exchange))
        self._target.answered(head.status)
        self._transport.write(wire + rest)
        self._tunnel = Tunnel(self._transport, pod)
        buffered, self._buffer = self._buffer, b""
        self._flow(flowing=True)
        if buffered:
            self._tunnel.from_client(buffered)

    def exchange_refused(self, refusal: Refusal) -> None:
        """Tell the client why, and when to come back."""
        self._exchange, self._finished = None, True
        self._close_with(
            refusal_response(refusal.status, refusal.words, retry=True), refusal.status
        )

    def exchange_broken(self) -> None:
        """Cut the connection, so that half an answer is not taken for a whole one."""
        self._exchange = None
        if self._transport is not None:
            self._transport.abort()

    def exchange_flow(self, *, flowing: bool) -> None:
        """Read more of the client's bytes, or none for now."""
        self._flow(flowing=flowing)

    def _stays_open(self, exchange: Exchange, head: ResponseHead) -> bool:
        ends_with_connection = not head.keep_alive and head.framing.name == "CLOSE"
        return (
            exchange.head.keep_alive
            and exchange.body.done
            and not ends_with_connection
            and not self._target.stepping_aside
        )


def _held_fields(exchange: Exchange) -> bytes:
    if exchange.held_since is None:
        return b""
    held = (asyncio.get_running_loop().time() - exchange.held_since) * 1000
    return b"X-Elasti-Cold-Start: true\r\nServer-Timing: elasti-hold;dur=%.1f\r\n" % held
