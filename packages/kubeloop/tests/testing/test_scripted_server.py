"""The scripted server itself: it must say what was scripted, and complain about the rest."""

from __future__ import annotations

import asyncio
import json
import re

import pytest
from tests.testing.scripted_answers import (
    WatchScript,
    drop,
    event_line,
    raw,
    refuse,
    reply,
    reset,
    silence,
)
from tests.testing.scripted_server import ScriptedServer


async def ask(server: ScriptedServer, head: str, body: bytes = b"") -> bytes:
    """Send one request on a connection of its own and return every byte until the end."""
    reader, writer = await asyncio.open_connection(server.host, server.port)
    try:
        writer.write(head.replace("\n", "\r\n").encode() + b"\r\n\r\n" + body)
        return await reader.read()
    finally:
        writer.close()


async def get(server: ScriptedServer, target: str) -> bytes:
    return await ask(server, f"GET {target} HTTP/1.1\nConnection: close\nX-One: 1\nX-One: 2")


async def test_answers_of_one_expectation_are_used_in_order():
    async with ScriptedServer() as server:
        server.expect("GET", "/api", reply("first"), reply("second"))
        assert (await get(server, "/api")).endswith(b'\r\n\r\n"first"')
        assert (await get(server, "/api")).endswith(b'\r\n\r\n"second"')


async def test_a_request_is_recorded_as_it_arrived():
    async with ScriptedServer() as server:
        server.serve("POST", "/a b", reply())
        await ask(
            server,
            "POST /a%20b?x=1&y=%2F HTTP/1.1\nX-One: 1\nX-One: 2\nContent-Length: 7\nConnection: close",
            b'{"a":1}',
        )
        (request,) = server.requests
    assert (request.method, request.path) == ("POST", "/a b")
    assert request.target == "/a%20b?x=1&y=%2F"
    assert request.query == {"x": "1", "y": "/"}
    assert request.header_values("X-One") == ["1", "2"]
    assert request.headers["x-one"] == "2"
    assert request.json() == {"a": 1}
    assert str(request) == "POST /a%20b?x=1&y=%2F"


async def test_a_chunked_request_body_is_read_whole():
    async with ScriptedServer() as server:
        server.serve("POST", "/x", reply())
        await ask(
            server,
            "POST /x HTTP/1.1\nTransfer-Encoding: chunked\nConnection: close",
            b"3;ext=1\r\nabc\r\n2\r\nde\r\n0\r\nTrailer: x\r\n\r\n",
        )
    assert server.requests[0].body == b"abcde"


async def test_a_connection_is_kept_for_the_next_request():
    async with ScriptedServer() as server:
        server.serve("GET", "/x", reply({}))
        reader, writer = await asyncio.open_connection(server.host, server.port)
        for _ in range(2):
            writer.write(b"GET /x HTTP/1.1\r\n\r\n")
            assert (await reader.readuntil(b"{}")).startswith(b"HTTP/1.1 200 OK")
        writer.close()
    assert [request.connection for request in server.requests] == [1, 1]


async def test_the_query_decides_between_rules_on_one_path():
    async with ScriptedServer() as server:
        server.expect("GET", "/pods", reply("plain"), query={"watch": None})
        server.expect("GET", "/pods", reply("limited"), query={"limit": "5"})
        assert b"limited" in await get(server, "/pods?limit=5&watch=true")
        assert b"plain" in await get(server, "/pods")


async def test_path_may_be_pattern_and_newest_served_rule_wins():
    async with ScriptedServer() as server:
        server.serve("GET", re.compile("/apis/.*"), reply("any"))
        server.serve("GET", "/apis/x", reply("x"))
        assert b'"any"' in await get(server, "/apis/y/z")
        assert b'"x"' in await get(server, "/apis/x")


async def test_an_unscripted_request_gets_500_and_fails_the_block():
    async def surprise() -> None:
        async with ScriptedServer() as server:
            assert (await get(server, "/nope")).startswith(b"HTTP/1.1 500")

    with pytest.raises(AssertionError, match="not scripted: GET /nope"):
        await surprise()


async def test_an_expectation_that_is_not_met_fails_the_block():
    with pytest.raises(AssertionError, match=r"never came: GET /x .*\(2x\)"):
        async with ScriptedServer() as server:
            server.expect("GET", "/x", reply(), reply(), query={"a": "b"})


async def test_the_tests_own_error_gets_the_report_as_a_note():
    async def failing() -> None:
        async with ScriptedServer() as server:
            server.expect("GET", "/x", reply())
            raise LookupError("the test's own")

    with pytest.raises(LookupError) as caught:
        await failing()
    assert "never came: GET /x" in caught.value.__notes__[0]


async def test_an_answer_that_raises_or_sends_nothing_fails_the_block():
    async def broken(exchange):
        raise ZeroDivisionError

    async def mute(exchange):
        pass

    async def ask_both() -> None:
        async with ScriptedServer() as server:
            server.expect("GET", "/x", broken, mute)
            assert await get(server, "/x") == b""
            assert await get(server, "/x") == b""

    with pytest.raises(AssertionError) as caught:
        await ask_both()
    assert "ZeroDivisionError" in str(caught.value)
    assert "sent nothing" in str(caught.value)


async def test_refusals_have_the_form_of_a_status():
    async with ScriptedServer() as server:
        server.expect("GET", "/x", refuse(409, "Conflict"))
        answer = await get(server, "/x")
    assert answer.startswith(b"HTTP/1.1 409 Conflict\r\n")
    status = json.loads(answer.partition(b"\r\n\r\n")[2])
    assert (status["kind"], status["code"], status["reason"]) == ("Status", 409, "Conflict")


async def test_reset_drop_and_raw_bytes_reach_client_as_such():
    async with ScriptedServer() as server:
        server.expect("GET", "/x", reset, drop, raw(b"HTTP/1.1 2"))
        with pytest.raises(ConnectionResetError):
            await get(server, "/x")
        assert await get(server, "/x") == b""
        assert await get(server, "/x") == b"HTTP/1.1 2"


async def test_a_connection_can_be_reset_before_a_byte():
    async with ScriptedServer() as server:
        server.reset_next_connections()
        with pytest.raises(ConnectionResetError):
            await get(server, "/x")
        server.serve("GET", "/x", reply())
        assert (await get(server, "/x")).startswith(b"HTTP/1.1 200")
        assert server.accepted == 2


async def test_a_connection_can_be_taken_over():
    async def shout(reader, writer):
        writer.write((await reader.readexactly(3)).upper())

    async with ScriptedServer() as server:
        server.hand_over_next_connection(shout)
        reader, writer = await asyncio.open_connection(server.host, server.port)
        writer.write(b"abc")
        assert await reader.read() == b"ABC"
        writer.close()
    assert server.requests == []


async def test_silence_lasts_until_the_client_leaves():
    async with ScriptedServer() as server:
        server.expect("GET", "/x", silence)
        reader, writer = await asyncio.open_connection(server.host, server.port)
        writer.write(b"GET /x HTTP/1.1\r\n\r\n")
        await server.arrived(1)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(reader.read()), 0.01)
        writer.close()


async def test_watch_is_fed_in_any_chunk_sizes_and_ends_properly():
    line = event_line("ADDED", {"metadata": {"name": "ä"}})
    async with ScriptedServer() as server:
        watch = server.expect_watch("/pods", query={"resourceVersion": "5"})
        asking = asyncio.ensure_future(get(server, "/pods?watch=true&resourceVersion=5"))
        assert (await watch.opened()).query["resourceVersion"] == "5"
        await watch.send_split(line, [1, 2])
        await watch.event("BOOKMARK", {})
        await watch.end()
        _, _, body = (await asking).partition(b"\r\n\r\n")
    sizes = [int(size, 16) for size in body.split(b"\r\n")[::2] if size]
    assert sizes == [1, 2, len(line) - 3, len(event_line("BOOKMARK", {})), 0]


async def test_the_bytes_of_a_watch_are_exactly_the_scripted_chunks():
    async with ScriptedServer() as server:
        watch = server.expect_watch("/pods", WatchScript(headers={"X-Odd": "yes"}))
        asking = asyncio.ensure_future(get(server, "/pods?watch=true"))
        await watch.send_split(b"abcdef", [1, 2])
        await watch.raw(b"5\r\nhal")
        await watch.drop()
        head, _, body = (await asking).partition(b"\r\n\r\n")
    assert b"X-Odd: yes" in head
    assert body == b"1\r\na\r\n2\r\nbc\r\n3\r\ndef\r\n5\r\nhal"


@pytest.mark.virtual_time
async def test_the_test_learns_that_the_client_closed_its_watch():
    async with ScriptedServer() as server:
        watch = server.expect_watch("/pods")
        _, writer = await asyncio.open_connection(server.host, server.port)
        writer.write(b"GET /pods?watch=true HTTP/1.1\r\n\r\n")
        await watch.opened()
        left = asyncio.create_task(watch.client_left())
        await asyncio.sleep(60)
        assert not left.done()
        writer.close()
        await asyncio.wait_for(left, 30)


async def test_server_can_refuse_for_while_on_same_port():
    async with ScriptedServer() as server:
        server.serve("GET", "/x", reply())
        port = server.port
        await server.stop_listening()
        with pytest.raises(ConnectionRefusedError):
            await get(server, "/x")
        await server.listen()
        assert server.port == port
        assert (await get(server, "/x")).startswith(b"HTTP/1.1 200")


async def test_nothing_is_left_after_block_even_with_requests_under_way():
    before = asyncio.all_tasks()
    async with ScriptedServer() as server:
        server.serve("GET", "/x", silence)
        reader, writer = await asyncio.open_connection(server.host, server.port)
        writer.write(b"GET /x HTTP/1.1\r\n\r\n")
        await server.arrived(1)
    assert asyncio.all_tasks() == before
    with pytest.raises(ConnectionResetError):
        await reader.read()
    writer.close()
