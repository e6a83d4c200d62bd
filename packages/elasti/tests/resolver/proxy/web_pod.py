"""A web server for real clients: hello, big bodies, sums of uploads, WebSocket echo, SSE, TLS.

usage: web_pod.py [CERTIFICATE KEY]; prints its port and ends with its input.
"""

from __future__ import annotations

import asyncio
import hashlib
import ssl
import sys

from aiohttp import WSMsgType, web

CLOSED = web.AppKey("closed", list)
STEPS = web.AppKey("steps", list[asyncio.Semaphore])
_PIECE = bytes(range(256)) * 256


async def hello(request: web.Request) -> web.Response:
    body = await request.read()
    return web.Response(text=f"{request.method} {request.path} {len(body)}\n")


async def down(request: web.Request) -> web.StreamResponse:
    size = int(request.match_info["size"])
    response = web.StreamResponse()
    if "chunked" not in request.query:
        response.content_length = size
    await response.prepare(request)
    while size > 0:
        await response.write(_PIECE[: min(size, len(_PIECE))])
        size -= len(_PIECE)
    return response


async def up(request: web.Request) -> web.Response:
    digest, size = hashlib.sha256(), 0
    async for piece in request.content.iter_any():
        digest.update(piece)
        size += len(piece)
    return web.Response(text=f"{size} {digest.hexdigest()}\n")


async def echo(request: web.Request) -> web.WebSocketResponse:
    socket = web.WebSocketResponse(max_msg_size=2**26)
    await socket.prepare(request)
    request.app[CLOSED].clear()  # of tests before
    async for message in socket:
        if message.type is WSMsgType.TEXT and message.data.startswith("close "):
            await socket.close(code=int(message.data[6:]), message=b"as you wish")
        elif message.type is WSMsgType.TEXT:
            await socket.send_str(message.data)
        elif message.type is WSMsgType.BINARY:
            await socket.send_bytes(message.data)
    request.app[CLOSED].append(socket.close_code)
    return socket


async def closed(request: web.Request) -> web.Response:
    return web.Response(text=str((request.app[CLOSED] or ["none"])[-1]))


async def events(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    for number in range(5):
        await response.write(b"data: %d\n\n" % number)
        await asyncio.sleep(0.01)
    return response


async def stepped(request: web.Request) -> web.StreamResponse:
    """Events, each but the first after a POST to /step."""
    steps = asyncio.Semaphore(0)
    request.app[STEPS][:] = [steps]
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    for number in range(5):
        await response.write(b"id: %d\ndata: %d\n\n" % (number, number))
        await steps.acquire()
    return response


async def step(request: web.Request) -> web.Response:
    request.app[STEPS][0].release()
    return web.Response()


async def main() -> None:
    app = web.Application(client_max_size=2**31)
    app.router.add_get("/down/{size}", down)
    app.router.add_route("*", "/up", up)
    app.router.add_get("/echo", echo)
    app.router.add_get("/events", events)
    app.router.add_get("/stepped", stepped)
    app.router.add_post("/step", step)
    app.router.add_get("/closed", closed)
    app[CLOSED] = []
    app[STEPS] = []
    app.router.add_route("*", "/{rest:.*}", hello)
    context = None
    if len(sys.argv) > 1:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(*sys.argv[1:3])
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
    await site.start()
    assert runner.addresses
    print(runner.addresses[0][1], flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await runner.cleanup()


if __name__ == "__main__":
    asyncio.run(main())
