"""Crowds and bad manners: the data path keeps serving, and keeps nothing."""

from __future__ import annotations

import asyncio
import contextlib
import json
import resource
import socket
import sys

import pytest
from tests.resolver.proxy.rig import HOST, Rig, hello

from elasti.resolver.proxy.h2 import frames as h2
from elasti.resolver.proxy.http1.connection import ClientConnection
from elasti.resolver.proxy.limits import Limits
from elasti.resolver.proxy.upstream.interface import Refusal
from tests.waiting import eventually

RESET = b"\x01\0\0\0\0\0\0\0"


async def test_a_crowd_that_vanishes_while_held_leaves_nothing(rig):
    clients = [await rig.connect() for _ in range(300)]
    for number, client in enumerate(clients):
        client.get(f"/{number}")
    await rig.held(300)
    for number, client in enumerate(clients):
        if number % 2:
            client.writer.transport.get_extra_info("socket").setsockopt(
                socket.SOL_SOCKET, socket.SO_LINGER, RESET
            )
        client.abort()
    await rig.held(0)
    await eventually(lambda: rig.statistics.connections == 0)


async def test_a_crowd_that_vanishes_at_the_release_executes_little_and_leaves_nothing(rig):
    pod = await rig.pod(hello, ready=False)
    clients = [await rig.connect() for _ in range(100)]
    for client in clients:
        client.get()
    await rig.held(100)
    for client in clients[:50]:
        client.abort()
    rig.upstream.release(pod.address)
    for client in clients[50:]:
        assert (await client.response())[0] == 200
    await eventually(lambda: rig.statistics.active == 0)


async def test_accepted_connections_are_watched_for_peers_that_vanish_without_a_word(rig):
    await rig.connect()
    await eventually(lambda: rig.handler._transports)
    (transport,) = rig.handler._transports
    accepted = transport.get_extra_info("socket")
    assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
    assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 30


async def test_a_silent_pod_does_not_delay_other_services():
    async def silent(pod, reader, writer):
        await reader.read()

    async with Rig(limits=Limits(answer=1.0)) as rig:
        mute = await rig.pod(silent)
        waiting = [await rig.connect() for _ in range(50)]
        for client in waiting:
            client.get()
        await eventually(lambda: mute.connections == 50)
        good = await rig.pod(hello, ready=False)
        rig.upstream.pods = [good.address]
        client = await rig.connect()
        client.get()
        assert (await client.response())[0] == 200
        for client in waiting:
            assert (await client.response())[0] == 504


async def test_a_pod_that_refuses_then_accepts_serves_in_order(rig):
    pod = await rig.pod(hello, ready=False)
    assert pod.server is not None
    pod.server.close()
    clients = [await rig.connect() for _ in range(200)]
    for number, client in enumerate(clients):
        client.get(f"/{number}")
        await rig.held(number + 1)
    waiting = list(rig.upstream.waiting)
    for _ in range(3):
        rig.upstream.release(pod.address)
        await rig.held(200)
        assert rig.upstream.waiting == waiting
    clients.pop(100).abort()
    await rig.held(199)
    again = await rig.pod(hello, ready=False, port=pod.address.port)
    rig.upstream.release(again.address)
    for client in clients:
        assert (await client.response())[0] == 200
    assert len(again.requests) == 199


async def test_a_client_that_pipelines_and_never_reads_is_not_buffered(rig):
    big = b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n" + b"x" * 1_000_000
    served = 0

    async def handler(pod, reader, writer):
        nonlocal served
        while True:
            await reader.readuntil(b"\r\n\r\n")
            served += 1
            writer.write(big)
            await writer.drain()

    await rig.pod(handler)
    client = await rig.connect(limit=1000)
    client.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n" * 1000)
    # No request is begun while the client does not read.
    await eventually(lambda: rig.statistics.connections == 1)
    (connection,) = (m for m in rig.path.sweeper._members if isinstance(m, ClientConnection))
    await eventually(lambda: connection._write_paused)
    assert served < 30


async def test_a_client_that_floods_pings_and_never_reads_is_cut_off(rig):
    client = await rig.connect(limit=1000)
    client.send(h2.PREFACE + h2.frame(h2.SETTINGS))

    ping = h2.frame(h2.PING, payload=b"12345678") * 1000

    async def flood() -> None:
        with contextlib.suppress(ConnectionError, RuntimeError):
            while True:
                client.send(ping)
                await client.writer.drain()

    flooding = asyncio.create_task(flood())
    await eventually(lambda: rig.statistics.received > 100)
    await eventually(lambda: rig.statistics.connections == 0)
    # No more answers than what is no flood, and less than what a socket takes.
    assert rig.statistics.sent < 1001 * 17 + 100
    flooding.cancel()
    await asyncio.gather(flooding, return_exceptions=True)


@pytest.mark.slow
async def test_ten_thousand_connections_at_once_are_held_and_served_in_order():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 20_000:
        pytest.skip("needs 20 000 descriptors")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        async with Rig(limits=Limits.for_descriptors(20_000)) as rig:
            pod = await rig.pod(path_only, ready=False)
            processes = [await clients(rig.port, 5000, first) for first in (0, 5000)]
            for process in processes:
                await process.stdout.readline()
            await rig.held(10_000)
            rig.upstream.release(pod.address)
            for process in processes:
                result = json.loads(await process.stdout.readline())
                assert (result["errors"], result["unanswered"]) == (0, 0)
                await process.wait()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def path_only(pod, reader, writer):
    while True:
        path = (await reader.readuntil(b"\r\n\r\n")).split(b" ")[1]
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b\n" % (len(path) + 1, path))


async def clients(port: int, count: int, first: int):
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "benchmarks.resolver_clients", "--host", HOST,
        "--port", str(port), "--count", str(count), "--first", str(first),
        stdout=asyncio.subprocess.PIPE, limit=2**24,
    )  # fmt: skip


async def test_refused_connections_are_answered_and_forgotten(rig):
    clients_ = [await rig.connect() for _ in range(200)]
    for client in clients_:
        client.get()
    await rig.held(200)
    rig.upstream.refuse_all(Refusal.TIMEOUT)
    for client in clients_:
        assert (await client.response())[0] == 504
    await eventually(lambda: rig.statistics.connections == 0)
