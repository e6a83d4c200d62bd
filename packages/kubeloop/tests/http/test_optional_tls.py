"""One port for both: a client that begins with a handshake gets TLS, any other is answered in the clear."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Callable

import pytest
import uvloop
from tests.certs import Authority, Issued, make_authority

from kubeloop.client.auth.tls import ClientKeyPair, present_certificate, trust_bundle
from kubeloop.http.client import ConnectFailed, HttpClient
from kubeloop.http.server import ConnectionLimits, HttpServer, Request, Response
from tests.waiting import eventually

NAME = "peer.example"
LIMITS = ConnectionLimits(head=5.0, connections=4)


async def tell_security(request: Request) -> Response:
    return Response(body=b"secure" if request.is_secure else b"clear")


def server_context(pair: Issued) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made = ClientKeyPair(
        certificate=pair.certificate, key=pair.key, certificate_origin="a", key_origin="b"
    )
    present_certificate(context, made)
    return context


def client_context(authority: Authority) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trust_bundle(context, authority.pem, origin="test")
    return context


@contextlib.asynccontextmanager
async def serving(
    optional_tls: Callable[[], ssl.SSLContext | None] | None, limits: ConnectionLimits = LIMITS
) -> AsyncIterator[HttpServer]:
    server = HttpServer(tell_security, limits, shutdown_timeout=0.1)
    try:
        await server.open("127.0.0.1", 0, optional_tls=optional_tls)
        yield server
    finally:
        await server.close()


async def ask(port: int, tls: ssl.SSLContext | None = None) -> bytes:
    scheme = "https" if tls else "http"
    async with (
        HttpClient() as http,
        http.request(
            "GET", f"{scheme}://127.0.0.1:{port}/", timeout=5.0, tls=tls, server_name=NAME
        ) as answer,
    ):
        return await answer.body(limit=100)


async def both_are_answered() -> None:
    authority = make_authority()
    context = server_context(authority.server(NAME))
    async with serving(lambda: context) as server:
        assert await ask(server.port) == b"clear"
        assert await ask(server.port, client_context(authority)) == b"secure"
        assert await ask(server.port) == b"clear"
        await eventually(lambda: not len(server))


async def test_a_port_has_both() -> None:
    await both_are_answered()


def test_a_port_has_both_on_uvloop() -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(both_are_answered())


async def test_each_handshake_takes_the_newest_certificate() -> None:
    old, new = make_authority(), make_authority()
    contexts = [server_context(old.server(NAME))]
    async with serving(lambda: contexts[-1]) as server:
        assert await ask(server.port, client_context(old)) == b"secure"
        contexts.append(server_context(new.server(NAME)))
        assert await ask(server.port, client_context(new)) == b"secure"
        with pytest.raises(ConnectFailed):
            await ask(server.port, client_context(old))


async def test_a_name_that_the_certificate_lacks_is_refused() -> None:
    authority = make_authority()
    context = server_context(authority.server("other.example"))
    async with serving(lambda: context) as server:
        with pytest.raises(ConnectFailed, match="Hostname mismatch"):
            await ask(server.port, client_context(authority))


async def test_a_handshake_that_fails_is_counted_no_longer() -> None:
    context = server_context(make_authority().server(NAME))
    async with serving(lambda: context) as server:
        with pytest.raises(ConnectFailed):
            await ask(server.port, client_context(make_authority()))
        await eventually(lambda: not len(server))


async def test_handshakes_that_stall_displace_each_other_and_no_client() -> None:
    authority = make_authority()
    context = server_context(authority.server(NAME))
    patient = ConnectionLimits(head=600.0, connections=4)
    async with serving(lambda: context, patient) as server, contextlib.AsyncExitStack() as stack:
        for _ in range(8):
            _, writer = await asyncio.open_connection("127.0.0.1", server.port)
            stack.push_async_callback(writer.wait_closed)
            stack.callback(writer.close)
            writer.write(b"\x16\x03\x01")
        await eventually(lambda: len(server) == 4)
        assert await ask(server.port, client_context(authority)) == b"secure"
        assert await ask(server.port) == b"clear"


async def test_a_stalled_handshake_ends_in_time() -> None:
    context = server_context(make_authority().server(NAME))
    async with serving(lambda: context, ConnectionLimits(head=0.1)) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"\x16\x03\x01")
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
        writer.close()
        await eventually(lambda: not len(server))


@pytest.mark.parametrize("optional_tls", [None, lambda: None])
async def test_without_a_certificate_a_handshake_is_a_bad_request(
    optional_tls: Callable[[], None] | None,
) -> None:
    async with serving(optional_tls) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"\x16\x03\x01\r\n\r\n")
        assert (await reader.read()).startswith(b"HTTP/1.1 400 ")
        writer.close()
