"""gRPC health checks: header blocks against a reference encoder, and servers that attack the client."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import struct
import time
from collections.abc import AsyncIterator

import hpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubeloop.probes.checks import ProbeOutcome
from kubeloop.probes.grpc_health import decode_block, grpc_check

HOST = "127.0.0.1"
printable = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), max_size=200)


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + struct.pack(">BBI", kind, flags, stream) + payload


@given(
    status=st.sampled_from(["200", "204", "404", "500", "418"]),
    code=st.integers(0, 16),
    message=printable,
    others=st.lists(st.tuples(st.sampled_from(["server", "date", "x-a"]), printable), max_size=5),
    huffman=st.booleans(),
)
def test_fields_are_read_as_a_reference_encoder_writes_them(status, code, message, others, huffman):
    wanted = {":status": status, "grpc-status": str(code), "grpc-message": message}
    encoder = hpack.Encoder()
    encoder.header_table_size = 0
    block = encoder.encode([(":status", status), *others, *list(wanted.items())[1:]], huffman)
    assert decode_block(block) == wanted


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_fields_or_a_value_error(block):
    with contextlib.suppress(ValueError):
        decode_block(block)


def test_a_reference_into_a_header_table_is_refused():
    with pytest.raises(ValueError, match="not allowed"):
        decode_block(b"\xbe")


async def check(port: int, *, service: str = "", timeout: float = 10.0) -> ProbeOutcome:
    return await grpc_check(HOST, port, service=service, timeout=timeout, agent="kube-probe/1.36")


# gRPC: a small server that answers one request, independent of the client.


class HealthServer:
    """Answers health checks with a fixed status, in pieces that a client must put together."""

    def __init__(self, *, status: int = 1, code: int = 0, message: str = "") -> None:
        self.status, self.code, self.message = status, code, message
        self.requests: list[tuple[dict[str, str], bytes]] = []

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncIterator[int]:
        server = await asyncio.start_server(self._serve, HOST, 0)
        async with server:
            yield server.sockets[0].getsockname()[1]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._talk(reader, writer)
        except asyncio.IncompleteReadError:
            pass
        finally:
            writer.close()

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert await reader.readexactly(24) == b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
        writer.write(frame(4, 0, 0, b"") + frame(6, 0, 0, b"12345678"))
        decoder, body = hpack.Decoder(), b""
        headers: dict[str, str] = {}
        pong = settled = False
        while not (pong and settled and body):
            head = await reader.readexactly(9)
            payload = await reader.readexactly(int.from_bytes(head[:3], "big"))
            kind, flags = head[3], head[4]
            if kind == 1:
                headers = {str(k): str(v) for k, v in decoder.decode(payload)}
            elif kind == 0:
                body = payload
            elif kind == 6:
                assert flags & 1
                assert payload == b"12345678"
                pong = True
            elif kind == 4 and flags & 1:
                settled = True
        self.requests.append((headers, body))
        writer.write(self._answer())
        await reader.read()

    def _answer(self) -> bytes:
        encoder = hpack.Encoder()
        first = encoder.encode([(":status", "200"), ("content-type", "application/grpc")])
        message = b"\x08" + bytes([self.status]) if self.status else b""
        data = b"\x00" + struct.pack(">I", len(message)) + message
        trailers = [("grpc-status", str(self.code)), ("grpc-message", self.message)]
        last = encoder.encode(trailers)
        return (
            frame(1, 0, 1, first[:3])
            + frame(9, 4, 1, first[3:])
            + frame(0, 8, 1, b"\x02" + data + b"\x00\x00")
            + frame(1, 5, 1, last)
        )


async def test_a_grpc_server_that_serves_is_healthy():
    server = HealthServer()
    async with server.listening() as port:
        assert await check(port, service="shop") == ProbeOutcome(
            healthy=True, message="service healthy"
        )
    headers, body = server.requests[0]
    assert headers[":path"] == "/grpc.health.v1.Health/Check"
    assert headers["content-type"] == "application/grpc"
    assert headers["te"] == "trailers"
    assert body == b"\x00\x00\x00\x00\x06\x0a\x04shop"


@pytest.mark.parametrize(
    ("server", "message"),
    [
        (HealthServer(status=2), 'service unhealthy (responded with "NOT_SERVING")'),
        (HealthServer(status=0), 'service unhealthy (responded with "UNKNOWN")'),
        (
            HealthServer(code=12, message="no"),
            "error: this server does not implement the grpc health protocol (grpc.health.v1.Health): no",
        ),
        (
            HealthServer(code=5, message="unknown service"),
            "error: health rpc probe failed: rpc error: code = 5 desc = unknown service",
        ),
    ],
)
async def test_other_grpc_answers_are_not(server, message):
    async with server.listening() as port:
        assert await check(port) == ProbeOutcome(healthy=False, message=message)


@pytest.mark.virtual_time
async def test_anything_but_a_grpc_server_fails_in_time():
    async def mute(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async def chatty(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(mute, HOST, 0) as server:
        port = server.sockets[0].getsockname()[1]
        silent = await check(port, timeout=1)
    assert silent.message == "timeout: health rpc did not complete within 1s"
    assert "connect: connection refused" in (await check(port)).message
    async with await asyncio.start_server(chatty, HOST, 0) as server:
        answer = await check(server.sockets[0].getsockname()[1])
    assert not answer.healthy


# Attacks: a pod is the tenant's, and all tenants share the event loop of the checker.


@contextlib.asynccontextmanager
async def attacking(flood: bytes) -> AsyncIterator[int]:
    """Run a server that sends the same bytes again and again, and never reads."""

    async def serve(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            for _ in range(2000):
                writer.write(flood)
                await writer.drain()
        writer.close()

    async with await asyncio.start_server(serve, HOST, 0) as server:
        yield server.sockets[0].getsockname()[1]


_LONG_BLOCK = hpack.Encoder().encode([(f"x-{number}", "y" * 50) for number in range(100)])


@pytest.mark.parametrize(
    "flood",
    [
        pytest.param(frame(6, 0, 0, b"12345678") * 500, id="pings"),
        pytest.param(frame(6, 0, 0, bytes(16_384)) * 4, id="large pings"),
        pytest.param(frame(1, 4, 1, b"\x88") * 500, id="headers"),
        pytest.param(frame(1, 4, 1, _LONG_BLOCK) * 10, id="long headers"),
        pytest.param(frame(1, 0, 1, b"") + frame(9, 0, 1, bytes(8)) * 500, id="continuations"),
        pytest.param(frame(0, 0, 1, bytes(16_384)) * 4, id="data"),
        pytest.param(frame(4, 0, 0, b"") * 500, id="settings"),
        pytest.param(frame(0xEE, 0, 0, b"") * 500, id="unknown frames"),
    ],
)
async def test_a_flood_ends_the_check_at_once(flood):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    async with attacking(flood) as port:
        began = time.process_time()
        outcome = await check(port)
    assert not outcome.healthy
    assert "timeout" not in outcome.message
    assert time.process_time() - began < 1.0
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 16 * 1024


async def test_a_ping_of_the_wrong_size_is_an_error():
    async with attacking(frame(6, 0, 0, b"123")) as port:
        assert "PING of 3 bytes" in (await check(port)).message
