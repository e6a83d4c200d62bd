"""WebSockets of a real client and a real server, cold and hot."""

from __future__ import annotations

import asyncio
import contextlib
import resource

import aiohttp
import pytest
import websockets
from tests.resolver.proxy.real_pods import web_pod
from tests.resolver.proxy.rig import HOST
from websockets.asyncio.client import ClientConnection, connect

from tests.waiting import eventually

pytestmark = pytest.mark.slow
MANY = 1000


def url(rig, path: str = "/echo") -> str:
    return f"ws://{HOST}:{rig.port}{path}"


async def test_text_binary_and_pings_pass_and_so_do_five_megabytes(rig, web):
    async with connect(url(rig), max_size=None, open_timeout=40) as socket:
        for number in range(50):
            await socket.send(f"message {number}")
            assert await socket.recv() == f"message {number}"
        big = bytes(5_000_000)
        await socket.send(big)
        assert await socket.recv() == big
        async with asyncio.timeout(40):
            await (await socket.ping())
        assert rig.statistics.tunnels == 1
    await eventually(lambda: rig.statistics.tunnels == 0)


async def test_the_servers_close_code_and_reason_arrive(rig, web):
    async with connect(url(rig), open_timeout=40) as socket:
        await socket.send("close 4001")
        with pytest.raises(websockets.exceptions.ConnectionClosedError):
            await socket.recv()
        assert (socket.close_code, socket.close_reason) == (4001, "as you wish")


async def test_the_clients_close_code_arrives_and_is_answered(rig, web):
    async with connect(url(rig), open_timeout=40) as socket:
        await socket.close(code=1001, reason="going")
        assert socket.close_code == 1000, "what the server answers"
    async with aiohttp.ClientSession() as session:
        async with session.get(f"http://{HOST}:{rig.port}/closed") as answer:
            assert await answer.text() == "1001"
    await eventually(lambda: rig.statistics.connections == 0)


async def test_one_that_is_refused_says_so(rig, web):
    with pytest.raises(websockets.exceptions.InvalidStatus) as caught:
        await connect(url(rig, "/elsewhere"), open_timeout=40)
    assert caught.value.response.status_code == 200


async def patient(where: str) -> ClientConnection:
    return await connect(where, open_timeout=50, ping_interval=None, compression=None)


@contextlib.contextmanager
def descriptors():
    """As many as the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("held", [False, True])
async def test_a_thousand_are_open_at_once(rig, held):
    async with contextlib.AsyncExitStack() as stack:
        stack.enter_context(descriptors())
        address = await stack.enter_async_context(web_pod())
        if not held:
            rig.upstream.pods.append(address)
        opening = asyncio.gather(*(patient(url(rig)) for _ in range(MANY)))
        if held:
            await eventually(lambda: len(rig.upstream.waiting) == MANY, timeout=50)
            rig.upstream.release(address)
        sockets = await opening
        await eventually(lambda: rig.statistics.tunnels == MANY)
        for number, socket in enumerate(sockets):
            await socket.send(f"{number}")
        for number, socket in enumerate(sockets):
            assert await socket.recv() == f"{number}"
        await asyncio.gather(*(socket.close() for socket in sockets))
        await eventually(lambda: rig.statistics.tunnels == 0)
