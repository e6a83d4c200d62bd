"""Servers for what a request and an answer do not show: WebSocket on 8080, gRPC on 8081.

    python3 echo.py

WebSocket messages come back as they are, at any path that asks for one; other requests are answered with
the pod's name. gRPC: `/echo.Echo/Echo` returns the message, `/echo.Echo/Count` four of it, and the standard
health service says that everything is served.
"""

from __future__ import annotations

import os
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import grpc
from aiohttp import WSMsgType, web

if TYPE_CHECKING:
    from collections.abc import Iterator

SERVING = b"\x08\x01"


def one(message: bytes, _context: object) -> bytes:
    """Return the message."""
    return message


def four(message: bytes, _context: object) -> Iterator[bytes]:
    """Return the message four times, as a stream."""
    yield from [message] * 4


def health(_message: bytes, _context: object) -> bytes:
    """Say that the service is served."""
    return SERVING


def serve_grpc() -> grpc.Server:
    """Start the gRPC server."""
    server = grpc.server(ThreadPoolExecutor(8))
    methods = {
        "echo.Echo": {
            "Echo": grpc.unary_unary_rpc_method_handler(one),
            "Count": grpc.unary_stream_rpc_method_handler(four),
        },
        "grpc.health.v1.Health": {"Check": grpc.unary_unary_rpc_method_handler(health)},
    }
    for service, handlers in methods.items():
        handler = grpc.method_handlers_generic_handler(service, handlers)
        server.add_generic_rpc_handlers((handler,))
    server.add_insecure_port("0.0.0.0:8081")
    server.start()
    return server


async def answer(request: web.Request) -> web.StreamResponse:
    """Return every message of a WebSocket; of anything else, who answers."""
    if request.headers.get("Upgrade", "").lower() != "websocket":
        return web.Response(text=f"{socket.gethostname()} {request.path}\n")
    conversation = web.WebSocketResponse()
    await conversation.prepare(request)
    async for message in conversation:
        if message.type is WSMsgType.TEXT:
            await conversation.send_str(message.data)
    return conversation


def main() -> None:
    """Serve until SIGTERM."""
    server = serve_grpc()
    print(f"{time.time():.4f} listening", flush=True)
    if os.environ.get("GRPC_ONLY"):
        server.wait_for_termination()
        return
    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    web.run_app(app, port=8080, print=None)


if __name__ == "__main__":
    main()
