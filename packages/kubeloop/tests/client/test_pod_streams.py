"""Logs, commands and ports of pods, against a server that does what a test scripts."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import ssl

import aiohttp
import pytest
from aiohttp import web
from tests.certs import make_authority, server_context
from tests.client.pod_server import (
    SUCCESS,
    V4,
    V5,
    Peer,
    PodServer,
    echo,
    failure,
    refusal,
    web_page,
)
from tests.client.rest import RenewableToken, client_of, config_for
from tests.testing.scripted_answers import drop, raw
from tests.testing.scripted_server import ScriptedServer

from kubeloop.client import (
    BadRequest,
    Client,
    ConnectionLost,
    Forbidden,
    InternalError,
    NotFound,
    OutputTooLong,
    ProtocolError,
    TransportError,
)
from kubeloop.client.auth.credentials import Anonymous
from kubeloop.client.config.endpoint import Endpoint
from kubeloop.client.pod_streams import CommandResult
from kubeloop.testing.fake_client import FakeClient
from tests.waiting import eventually

POD = ("default", "web-0")


async def never(peer: Peer) -> None:
    raise AssertionError("no WebSocket was expected")


async def seven(peer: Peer) -> None:
    await peer.send(1)
    # One message in two frames, as a proxy may cut it.
    peer.transport.write(b"\x02\x03\x01ou\x80\x01t")
    await peer.send(2, b"err")
    await peer.status(failure(7))


# Commands.


@pytest.mark.parametrize("protocol", [V5, V4])
async def test_outputs_come_apart_and_exit_code_at_end(protocol):
    async with PodServer(seven, protocols=(protocol,)) as server, server.client() as client:
        words = ["sh", "-c", "exit 7 & ü"]
        assert await client.run(*POD, words, container="app") == CommandResult(b"out", b"err", 7)
        (request,) = server.requests
    assert request.path == "/api/v1/namespaces/default/pods/web-0/exec"
    assert request.query.getall("command") == words
    assert {**request.query, "command": ""} == {
        "container": "app",
        "command": "",
        "stdout": "true",
        "stderr": "true",
    }
    assert request.headers["user-agent"].startswith("kubeloop/")


@pytest.mark.parametrize("channel", [1, 2])
async def test_output_without_an_end_is_given_up(channel):
    async def chatter(peer: Peer) -> None:
        with contextlib.suppress(OSError, aiohttp.ClientError):
            while True:
                await peer.send(channel, bytes(100_000))

    async with PodServer(chatter) as server, server.client() as client:
        with pytest.raises(
            OutputTooLong, match="more than 16777216 bytes; pass a larger max_output"
        ):
            await client.run(*POD, ["yes"])
        with pytest.raises(OutputTooLong, match="more than 1000 bytes"):
            await client.run(*POD, ["yes"], max_output=1000)


async def test_stdin_is_sent_in_pieces_and_ended():
    data = bytes(range(256)) * 4096
    async with PodServer(echo) as server, server.client() as client:
        assert (await client.run(*POD, ["cat"], stdin=data)).stdout == data
        async with client.exec(*POD, ["cat"], stdin=True) as process:
            await process.stdin.write(b"one\ntwo\n")
            assert await process.stdout.readline() == b"one\n"
            await process.stdin.close()
            assert [line async for line in process.stdout] == [b"two\n"]
            assert await process.wait() == 0


async def test_command_may_end_before_it_has_read_everything():
    async def head(peer: Peer) -> None:
        await peer.receive()
        await peer.send(1, b"enough")
        await peer.status(SUCCESS)

    async with PodServer(head) as server, server.client() as client:
        result = await client.run(*POD, ["head", "-c1"], stdin=bytes(20_000_000))
        assert result == CommandResult(b"enough", b"", 0)


async def test_old_server_cannot_end_stdin_and_the_error_says_so():
    async with PodServer(echo, protocols=(V4,)) as server, server.client() as client:
        with pytest.raises(ProtocolError, match=r"v4.*cannot end stdin.*before 1\.30"):
            await client.run(*POD, ["cat"], stdin=b"x")


async def test_attach_with_terminal_has_one_output_and_a_size():
    async def terminal(peer: Peer) -> None:
        channel, size = await peer.receive()
        await peer.send(1, b"%d %s" % (channel, size))
        await peer.status(SUCCESS)

    async with PodServer(terminal) as server, server.client() as client:
        async with client.attach(*POD, stdin=True, tty=True) as process:
            await process.resize(columns=80, rows=24)
            assert await process.stdout.read() == b'4 {"Width":80,"Height":24}'
            assert await process.stderr.read() == b""
        (request,) = server.requests
    assert request.path.endswith("/attach")
    assert dict(request.query) == {"stdin": "true", "stdout": "true", "tty": "true"}


async def test_what_was_not_asked_for_is_named():
    async with PodServer(seven) as server, server.client() as client:
        with pytest.raises(ValueError, match="list of words"):
            client.exec(*POD, "ls -l")
        async with client.exec(*POD, ["ls"]) as process:
            with pytest.raises(ValueError, match="stdin=True"):
                _ = process.stdin
        with pytest.raises(ValueError, match="namespaced"):
            await client.run("", "web-0", ["ls"])


async def test_command_that_cannot_be_run_is_an_error_wherever_it_is_met():
    async def missing(peer: Peer) -> None:
        message = "exec: 'nope': executable file not found"
        await peer.status({"status": "Failure", "reason": "InternalError", "message": message})

    async with PodServer(missing) as server, server.client() as client:
        async with client.exec(*POD, ["nope"]) as process:
            for reading in (process.stdout.read(), process.stderr.readline(), process.wait()):
                with pytest.raises(InternalError, match="executable file not found"):
                    await reading


async def test_slow_reader_stops_the_server():
    size, sent = 64 * 1024 * 1024, 0

    async def much(peer: Peer) -> None:
        nonlocal sent
        piece = bytes(32 * 1024)
        while sent < size:
            await peer.send(1, piece)
            sent += len(piece)
        await peer.status(SUCCESS)

    async with PodServer(much) as server, server.client() as client:
        async with client.exec(*POD, ["yes"]) as process:
            await process.stdout.readexactly(1)
            before = -1
            while sent > before:  # as long as the loop finds anything to do
                before = sent
                for _ in range(500):
                    await asyncio.sleep(0)
            assert sent < size / 2  # what sockets hold of it
            assert len(process.stdout._buffer) < 1_000_000  # type: ignore[attr-defined]
            read = 1
            while piece := await process.stdout.read(1 << 20):
                read += len(piece)
            assert (read, await process.wait()) == (size, 0)


GARBAGE = {
    "TEXT: hello": lambda peer: peer.socket.send_str("hello"),
    "channel 9": lambda peer: peer.send(9, b"x"),
    "channel 4": lambda peer: peer.send(4, b"x"),
    "without a channel": lambda peer: peer.socket.send_bytes(b""),
    "Message size": lambda peer: peer.send(1, bytes(2_000_000)),
    "not the Status": lambda peer: peer.send(3, b"oops"),
    "not the Status of": lambda peer: peer.status(failure("x")),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("what", GARBAGE)
async def test_garbage_is_an_error_and_never_a_hang(what):
    async def garbage(peer: Peer) -> None:
        await GARBAGE[what](peer)
        if "Status" not in what:
            await peer.receive()

    async with PodServer(garbage) as server, server.client() as client, asyncio.timeout(10):
        async with client.exec(*POD, ["ls"]) as process:
            for reading in (process.stdout.read(), process.wait()):
                with pytest.raises(ProtocolError, match=what):
                    await reading


@pytest.mark.parametrize("abruptly", [True, False])
async def test_server_that_goes_in_the_middle_is_noticed(abruptly):
    async def goes(peer: Peer) -> None:
        await peer.send(1, b"begun")
        if abruptly:
            peer.transport.abort()

    async with PodServer(goes) as server, server.client() as client:
        with pytest.raises(ConnectionLost, match="middle of the answer"):
            await client.run(*POD, ["ls"])


async def test_status_ends_a_command_even_if_the_server_does_not_close(monkeypatch):
    monkeypatch.setattr("kubeloop.client.wire.channels._LINGER", 0.05)

    async def stays(peer: Peer) -> None:
        await peer.status(SUCCESS)
        await peer.receive()

    async with PodServer(stays) as server, server.client() as client:
        assert (await client.run(*POD, ["ls"])).code == 0


async def test_leaving_the_block_closes_the_socket_and_wakes_readers():
    ended = asyncio.Event()

    async def waits(peer: Peer) -> None:
        assert await peer.receive() == (-1, b"")
        ended.set()

    async with PodServer(waits) as server, server.client() as client:
        async with client.exec(*POD, ["sleep"]) as process:
            reading = asyncio.create_task(process.stdout.read())
            await eventually(lambda: server.requests)
        assert await reading == b""
        with pytest.raises(ConnectionLost, match="closed by its owner"):
            await process.wait()
        await asyncio.wait_for(ended.wait(), 10)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.05):
                await client.run(*POD, ["sleep"])


# The upgrade.


async def test_refusals_are_the_servers_own_errors():
    async with PodServer(never) as server, server.client() as client:
        server.refusals = [
            refusal(403, "Forbidden", 'pods "web-0" is forbidden: cannot create pods/exec'),
            refusal(404, "NotFound", 'pods "web-0" not found'),
            web.Response(status=500, text="container not running"),
            web.Response(status=302, headers={"Location": f"{server.url}/elsewhere"}),
        ]
        with pytest.raises(Forbidden, match="cannot create pods/exec"):
            await client.run(*POD, ["ls"])
        with pytest.raises(NotFound, match="not found"):
            async with client.port_forward(*POD, 80):
                pass
        with pytest.raises(InternalError, match="container not running"):
            await client.run(*POD, ["ls"])
        with pytest.raises(ProtocolError, match=r"redirects to .*elsewhere.* not followed"):
            await client.run(*POD, ["ls"])
        assert len(server.requests) == 4


async def test_server_of_no_known_protocol_is_refused():
    async with PodServer(echo, protocols=()) as server, server.client() as client:
        with pytest.raises(ProtocolError, match=r"none of v5\.channel\.k8s\.io"):
            await client.run(*POD, ["ls"])


async def test_refused_token_is_renewed_and_command_sent_again():
    token = RenewableToken("old", "new")
    async with PodServer(seven) as server, server.client(credentials=token) as client:
        server.refusals = [refusal(401, "Unauthorized", "Unauthorized")]
        assert (await client.run(*POD, ["ls"])).code == 7
        sent = [request.headers["authorization"] for request in server.requests]
    assert sent == ["Bearer old", "Bearer new"]


async def test_command_is_not_sent_again_where_the_connection_is_lost():
    async with ScriptedServer() as server, client_of(server) as client:
        server.serve("GET", "/api/v1/namespaces/default/pods/web-0/exec", drop)
        with pytest.raises(ConnectionLost, match="before an answer came"):
            await client.run(*POD, ["rm"])
        assert len(server.requests) == 1


async def test_tls_and_proxy_are_those_of_the_client():
    authority = make_authority()

    async def tunnel(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"CONNECT inner:6443 ")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        other = await asyncio.open_connection("127.0.0.1", server.port)
        await asyncio.gather(carry(reader, other[1]), carry(other[0], writer))

    async def carry(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await source.read(65536):
                sink.write(data)
        sink.close()

    class Trusting(Anonymous):
        async def ssl_context(self) -> ssl.SSLContext:
            return ssl.create_default_context(cadata=authority.pem.decode())

    async with PodServer(seven, tls=server_context(authority.server("inner"))) as server:
        proxy = await asyncio.start_server(tunnel, "127.0.0.1")
        through = f"http://127.0.0.1:{proxy.sockets[0].getsockname()[1]}"
        endpoint = Endpoint.parse("https://inner:6443", proxy=through)
        config = dataclasses.replace(config_for("https://inner"), endpoint=endpoint)
        config = dataclasses.replace(config, credentials=Trusting())
        async with Client(config) as client:
            assert (await client.run(*POD, ["ls"])).code == 7
        proxy.close()


# Logs.


async def test_log_comes_line_by_line_however_it_was_cut():
    async with PodServer(never) as server, server.client() as client:
        server.log = (b"one\ntw", b"o \xc3", b"\xbc\n\n\xff", b"end")
        lines = [line async for line in client.logs(*POD, tail_lines=0, follow=True)]
        assert lines == ["one", "two ü", "", "�end"]
        assert dict(server.requests[0].query) == {"follow": "true", "tailLines": "0"}


async def test_line_without_an_end_comes_in_pieces():
    async with PodServer(never) as server, server.client() as client:
        server.log = tuple(b"x" * 100_000 for _ in range(30))
        lines = [line async for line in client.logs(*POD)]
    assert sum(map(len, lines)) == 3_000_000
    assert max(map(len, lines)) < 3_000_000


async def test_refused_log_is_the_servers_own_error():
    message = 'container "app" in pod "web-0" is waiting to start: ContainerCreating'
    async with PodServer(never) as server, server.client() as client:
        server.refusals = [refusal(400, "BadRequest", message)]
        with pytest.raises(BadRequest, match="waiting to start: ContainerCreating"):
            await anext(client.logs(*POD))


async def test_log_that_is_cut_off_is_an_error():
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n"
    async with ScriptedServer() as server, client_of(server) as client:
        server.serve("GET", "/api/v1/namespaces/default/pods/web-0/log", raw(head + b"9\r\none\nt"))
        logs = client.logs(*POD)
        assert await anext(logs) == "one"
        with pytest.raises(ConnectionLost, match="middle of the answer"):
            await anext(logs)


# Ports.


async def test_forwarded_port_is_a_reader_and_a_writer():
    async with PodServer(web_page) as server, server.client() as client:
        async with client.port_forward(*POD, 8080) as (reader, writer):
            await writer.write(b"GET / HTTP/1.1\r\n\r\n")
            assert (await reader.read()).endswith(b"\r\n\r\nhello")
            await writer.close()
        (request,) = server.requests
    assert request.rel_url.raw_path_qs.endswith("/pods/web-0/portforward?ports=8080")
    assert request.headers["sec-websocket-protocol"] == V4


async def test_listener_forwards_each_connection():
    async with PodServer(web_page) as server, server.client() as client:
        async with client.port_forward_listener(*POD, 8080) as port:
            async with aiohttp.ClientSession() as session:
                for _ in range(2):
                    async with session.get(f"http://127.0.0.1:{port}/") as got:
                        assert await got.text() == "hello"
        assert len(server.requests) == 2
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", port)


async def test_port_on_which_nothing_listens_is_an_error(caplog):
    async def nothing(peer: Peer) -> None:
        for channel in (0, 1):
            await peer.send(channel, b"\x50\x00")
        await peer.send(1, b"error forwarding port 80: connection refused")

    async with PodServer(nothing) as server, server.client() as client:
        async with client.port_forward(*POD, 80) as (reader, _):
            with pytest.raises(TransportError, match="connection refused"):
                await reader.read()
        async with client.port_forward_listener(*POD, 80) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            assert await reader.read() == b""
            writer.close()
        async with client.port_forward(*POD, 81) as (reader, _):
            with pytest.raises(ProtocolError, match="beginning of channel 0"):
                await reader.read()
        with pytest.raises(ValueError, match="from 1 to 65535"):
            async with client.port_forward(*POD, 0):
                pass
    assert "connection refused" in caplog.text


async def test_fake_client_says_that_it_has_no_containers():
    client = FakeClient()
    with pytest.raises(NotImplementedError, match="runs no containers"):
        await anext(client.logs(*POD))
    with pytest.raises(NotImplementedError, match="runs no containers"):
        await client.run(*POD, ["ls"])
