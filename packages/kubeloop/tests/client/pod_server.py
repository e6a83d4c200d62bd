"""A server of pods' streams: WebSockets with channels, and logs, as a test scripts them.

    async with PodServer(answer) as server, server.client() as client: ...

`answer` gets each WebSocket once it is open; when it returns, the server closes the socket.
"""

from __future__ import annotations

import contextlib
import json
import ssl
from collections.abc import Awaitable, Callable
from typing import Any, Self

from aiohttp import WSMsgType, web
from tests.client.rest import config_for

from kubeloop.client import Client

V4, V5 = "v4.channel.k8s.io", "v5.channel.k8s.io"
SUCCESS = {"metadata": {}, "status": "Success"}


def failure(code: int) -> dict[str, Any]:
    causes = [{"reason": "ExitCode", "message": str(code)}]
    return {"status": "Failure", "reason": "NonZeroExitCode", "details": {"causes": causes}}


class Peer:
    """One open WebSocket, from the server's side."""

    def __init__(self, socket: web.WebSocketResponse, request: web.Request) -> None:
        self.socket = socket
        self.request = request
        assert request.transport is not None
        self.transport = request.transport

    async def send(self, channel: int, data: bytes = b"") -> None:
        await self.socket.send_bytes(bytes((channel,)) + data)

    async def status(self, document: dict[str, Any]) -> None:
        await self.send(3, json.dumps(document).encode())

    async def receive(self) -> tuple[int, bytes]:
        """The next message; channel -1 is the end."""
        message = await self.socket.receive()
        if message.type is not WSMsgType.BINARY:
            return -1, b""
        return message.data[0], message.data[1:]


class PodServer:
    def __init__(
        self,
        answer: Callable[[Peer], Awaitable[None]],
        *,
        protocols: tuple[str, ...] = (V5, V4),
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._answer = answer
        self._protocols = protocols
        self._tls = tls
        self.requests: list[web.Request] = []
        self.refusals: list[web.Response] = []
        self.log: tuple[bytes, ...] = ()

    def client(self, **fields: Any) -> Client:
        return Client(config_for(self.url, **fields))

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.router.add_get("/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, shutdown_timeout=1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0, ssl_context=self._tls).start()
        self.port = self._runner.addresses[0][1]
        self.url = f"{'https' if self._tls else 'http'}://127.0.0.1:{self.port}"
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self._runner.cleanup()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(request)
        if self.refusals:
            return self.refusals.pop(0)
        if request.path.endswith("/log"):
            return await self._logs(request)
        socket = web.WebSocketResponse(protocols=self._protocols, max_msg_size=0)
        await socket.prepare(request)
        with contextlib.suppress(ConnectionError):
            await self._answer(Peer(socket, request))
        return socket

    async def _logs(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/plain"})
        response.enable_chunked_encoding()
        await response.prepare(request)
        for piece in self.log:
            await response.write(piece)
        return response


def refusal(code: int, reason: str, message: str) -> web.Response:
    document = {"kind": "Status", "status": "Failure", "code": code, "reason": reason}
    return web.json_response({**document, "message": message}, status=code)


async def echo(peer: Peer) -> None:
    """A command that prints what it reads; `cat`."""
    await peer.send(1)
    while True:
        channel, data = await peer.receive()
        if channel == 0:
            await peer.send(1, data)
        elif (channel, data) == (255, b"\0"):
            await peer.status(SUCCESS)
            return
        elif channel < 0:
            return


async def web_page(peer: Peer) -> None:
    """A forwarded port whose pod answers one request, in two messages, and closes."""
    greeting = int(peer.request.query["ports"]).to_bytes(2, "little")
    await peer.send(0, greeting)
    await peer.send(1, greeting)
    _, request = await peer.receive()
    assert request.startswith(b"GET / HTTP/1.")
    await peer.send(0, b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhe")
    await peer.send(0, b"llo")
