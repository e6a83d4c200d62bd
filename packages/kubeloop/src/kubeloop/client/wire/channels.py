"""Several byte streams over one WebSocket, as Kubernetes carries commands and forwarded ports.

The first byte of a message is the number of its channel. Output channels are `StreamReader`s of
bounded size: when one of them is full, the socket is not read until it has room again, and the
container waits. So a program that reads one of two outputs must read the other too, as with the pipes of
a subprocess. What comes on the error channel is collected, and says at the end how it ended.

A peer that sends text, a channel that was not asked for, or a message beyond all measure gets no
second chance: every reader raises `ProtocolError`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from kubeloop.aio.tasks import finish
from kubeloop.client.errors import KubeError, ProtocolError
from kubeloop.client.wire.errors import lost
from kubeloop.http.framing import FramingError

if TYPE_CHECKING:
    from kubeloop.client.wire.websocket import WebSocket

V5 = "v5.channel.k8s.io"
V4 = "v4.channel.k8s.io"

_PIECE = 32 * 1024
_CLOSE_CHANNEL = 255
_MAX_SAID = 1024 * 1024
# After its last word a server closes the socket at once.
_LINGER = 5.0
_GOODBYE = 1.0


class ChannelSocket:
    """The client's side of one WebSocket. `aclose` frees it, and ends what is being read.

    Each channel begins with `greeting`, which is checked and taken off. `ended` is what `outcome`
    makes of the URL and of the error channel: an exit code, or why it is missing.
    """

    def __init__(
        self,
        socket: WebSocket,
        *,
        url: str,
        outputs: Collection[int],
        error_channel: int,
        outcome: Callable[[str, bytes], int],
        greeting: bytes = b"",
    ) -> None:
        self._socket = socket
        self._url = url
        self._error_channel = error_channel
        self._outcome = outcome
        self._valves = [_Valve(asyncio.StreamReader()) for _ in outputs]
        self.outputs = dict(zip(outputs, (valve.reader for valve in self._valves), strict=True))
        self._greetings = dict.fromkeys((*outputs, error_channel), greeting)
        self._said = b""
        self.ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._pump = asyncio.create_task(self._read(), name=f"channels of {url}")

    async def send(self, channel: int, data: bytes) -> None:
        """Send bytes; waits while the peer does not keep up. Raises `ConnectionLost`."""
        number = bytes((channel,))
        try:
            for start in range(0, len(data), _PIECE):
                await self._socket.send(number + data[start : start + _PIECE])
        except OSError as error:
            raise lost(self._url, str(error), answer_begun=True) from error

    async def end(self, channel: int) -> None:
        """Close the sending side of a channel; the peer may have left already."""
        if self._socket.protocol != V5:
            raise ProtocolError(
                f"{self._url}: the server speaks {self._socket.protocol}, which cannot end stdin"
                " alone (Kubernetes before 1.30): leave the block instead"
            )
        with contextlib.suppress(OSError):
            await self._socket.send(bytes((_CLOSE_CHANNEL, channel)))

    async def aclose(self) -> None:
        """Close the socket at once. Safe to repeat."""
        try:
            await finish([self._pump])
        finally:
            self._end(lost(self._url, "closed by its owner", answer_begun=True))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_GOODBYE):
                    await self._socket.close()

    async def _read(self) -> None:
        try:
            await self._deliver()
            code = self._outcome(self._url, self._said)
        except KubeError as error:
            for reader in self.outputs.values():
                reader.set_exception(error)
            self._end(error)
        else:
            self._end(code)

    def _end(self, outcome: int | KubeError) -> None:
        if self.ended.done():
            return
        if isinstance(outcome, int):
            self.ended.set_result(outcome)
        else:
            self.ended.set_exception(outcome)
            self.ended.exception()  # retrieved here: not everyone waits for the end
        for reader in self.outputs.values():
            reader.feed_eof()

    async def _deliver(self) -> None:
        """Pass messages on until the peer ends, with a goodbye or after its last word."""
        while True:
            try:
                async with asyncio.timeout(_LINGER if self._said else None):
                    message = await self._socket.receive()
            except FramingError as error:
                raise self._garbage(str(error)) from error
            except OSError as error:  # also a TimeoutError
                if self._said:
                    return
                raise lost(self._url, str(error), answer_begun=True) from error
            if message is None:
                return
            self._take(message)
            for valve in self._valves:
                await valve.opened.wait()

    def _take(self, message: bytes) -> None:
        if not message:
            raise self._garbage("a message without a channel")
        channel, data = message[0], message[1:]
        if greeting := self._greetings.pop(channel, b""):
            if not data.startswith(greeting):
                raise self._garbage(f"{data[:20]!r} at the beginning of channel {channel}")
            data = data[len(greeting) :]
        if channel == self._error_channel:
            self._said += data
            if len(self._said) > _MAX_SAID:
                raise self._garbage("an error without an end")
        elif (reader := self.outputs.get(channel)) is not None:
            reader.feed_data(data)
        else:
            raise self._garbage(f"bytes for channel {channel}, which was not opened")

    def _garbage(self, what: str) -> ProtocolError:
        return ProtocolError(f"{self._url}: the server sent {what}; is a proxy in between?")


class _Valve(asyncio.ReadTransport):
    """The transport of a `StreamReader`: shut while it has enough."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        super().__init__()
        self.reader = reader
        self.opened = asyncio.Event()
        self.opened.set()
        reader.set_transport(self)

    def pause_reading(self) -> None:
        self.opened.clear()

    def resume_reading(self) -> None:
        self.opened.set()
