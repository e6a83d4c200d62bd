"""A pod for measurements: refuses, accepts without being ready, and answers, each when it is told to.

Commands come line by line and are answered with a line of JSON:

    refuse       a new port that refuses connections: `port`
    accept       it accepts, and its readiness probe fails: `at`
    answer       it accepts, and its readiness probe passes: `at`, by the machine's monotonic clock, and
                 how many `requests` came before
    end          close the port: how many `requests` came in all

It answers each request with its own path. It ends with its input.
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys
import time
from typing import cast

import uvloop

_PROBE = b"GET /ready "


class Conversation(asyncio.Protocol):
    """One connection."""

    def __init__(self, pod: Pod) -> None:
        self._pod = pod
        self._buffer = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have the interface, not the base class.
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        assert self._transport is not None
        self._buffer += data
        while (end := self._buffer.find(b"\r\n\r\n")) >= 0:
            head, self._buffer = self._buffer[:end], self._buffer[end + 4 :]
            self._transport.write(self._pod.answer(head))


class Pod:
    """One port after the other."""

    def __init__(self) -> None:
        self.requests = 0
        self._is_ready = False
        self._sock: socket.socket | None = None
        self._server: asyncio.AbstractServer | None = None

    def answer(self, head: bytes) -> bytes:
        """Return the response to a request."""
        status = b"200 OK"
        if head.startswith(_PROBE):
            status = b"200 OK" if self._is_ready else b"503 Not Ready"
        else:
            self.requests += 1
        body = head.split(b" ", 2)[1] + b"\n"
        return b"HTTP/1.1 %b\r\nContent-Length: %d\r\n\r\n%b" % (status, len(body), body)

    async def obey(self, command: str) -> dict[str, object]:
        """Do what a command says."""
        match command:
            case "refuse":
                self._sock = socket.socket()
                self._sock.bind(("127.0.0.1", 0))
                self.requests, self._is_ready = 0, False
                return {"port": self._sock.getsockname()[1]}
            case "accept":
                return {"at": await self._listen()}
            case "answer":
                before = self.requests
                self._is_ready = True
                return {"at": await self._listen(), "requests": before}
            case _:
                assert self._server is not None
                self._server.close()
                self._server = self._sock = None
                return {"requests": self.requests}

    async def _listen(self) -> float:
        assert self._sock is not None
        at = time.monotonic()
        if self._server is None:
            loop = asyncio.get_running_loop()
            self._server = await loop.create_server(
                lambda: Conversation(self), sock=self._sock, backlog=4096
            )
        return at


async def _serve() -> None:
    pod, reader = Pod(), asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    while line := await reader.readline():
        print(json.dumps(await pod.obey(line.decode().strip())), flush=True)


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve())
