"""Watches of a second, which informers prove their own watches with: they share connections."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.client.rest import client_of, pod
from tests.testing.scripted_answers import drop, event_line, raw, refuse, reply
from tests.testing.scripted_server import ScriptedServer

from kubeloop.client.client import Client
from kubeloop.client.errors import ConnectionRefused, Gone, ProtocolError
from kubeloop.client.wire.watch import WireWatch
from kubeloop.objects.list_watch import WatchOptions

PODS = "/api/v1/pods"
QUIET = reply(body=b"")
NEWS = reply(body=event_line("ADDED", pod()))


async def opened(client: Client, *, seconds: int = 1) -> WireWatch[Any]:
    options = WatchOptions(resource_version="5", timeout_seconds=seconds)
    return await client.resource("v1/pods").watch(options)


async def peek(client: Client, *, seconds: int = 1) -> list[str]:
    """Read a watch to its end; return the names of what came."""
    stream, names = await opened(client, seconds=seconds), []
    try:
        while events := await stream.read():
            names += [event.object["metadata"]["name"] for event in events]
    finally:
        await stream.close()
    return names


async def test_they_use_one_connection_one_after_another():
    async with ScriptedServer() as server, client_of(server) as client:
        server.expect("GET", PODS, *(QUIET for _ in range(5)))
        assert [await peek(client) for _ in range(5)] == [[]] * 5
        assert server.accepted == 1


async def test_a_longer_watch_has_a_connection_of_its_own():
    async with ScriptedServer() as server, client_of(server) as client:
        server.expect("GET", PODS, *(QUIET for _ in range(3)))
        for seconds in (1, 2, 1):
            await peek(client, seconds=seconds)
        assert server.accepted == 2
        assert [request.headers.get("connection") for request in server.requests] == [
            None,
            "close",
            None,
        ]


async def test_one_that_is_left_early_leaves_nothing_for_the_next():
    async with ScriptedServer() as server, client_of(server) as client:
        script = server.expect_watch(PODS)
        server.expect("GET", PODS, NEWS)
        stream = await opened(client)
        await script.event("ADDED", pod("early"))
        assert len(await stream.read()) == 1
        await stream.close()
        await stream.close()
        assert await peek(client) == ["web-0"]
        assert server.accepted == 2


async def test_a_connection_that_the_server_closed_meanwhile_is_replaced():
    async with ScriptedServer() as server, client_of(server) as client:
        server.expect("GET", PODS, QUIET, drop, NEWS)
        assert await peek(client) == []
        assert await peek(client) == ["web-0"]
        assert server.accepted == 2


async def test_their_failures_are_those_of_any_watch():
    async with ScriptedServer() as server, client_of(server) as client:
        server.expect("GET", PODS, refuse(410, "Expired"), raw(b"HTTP/1.1 200 OK\r\nx\r\n\r\n"))
        with pytest.raises(Gone):
            await peek(client)
        with pytest.raises(ProtocolError, match=PODS):
            await peek(client)
        await server.stop_listening()
        with pytest.raises(ConnectionRefused):
            await peek(client)


async def test_a_reader_may_take_its_time():
    async with ScriptedServer() as server, client_of(server) as client:
        server.expect("GET", PODS, NEWS)
        stream = await opened(client)
        await asyncio.sleep(6.5)  # longer than the server may be silent
        assert len(await stream.read()) == 1
        await stream.close()


async def test_they_go_on_without_a_kept_connection_when_the_client_was_closed():
    async with ScriptedServer() as server:
        async with client_of(server) as client:
            server.expect("GET", PODS, QUIET, QUIET)
            await peek(client)
        assert await peek(client) == []
        assert server.accepted == 2
