"""What is fuzzed: each target takes any bytes, and raises where something is wrong.

| target | what reads the bytes | what it is compared with |
|---|---|---|
| http1 | the resolver, from a client, with a pod behind it | h11 and httptools, on what the pod was sent |
| http1 | kubeloop's server | h11 and httptools, on what its handler was given |
| answer | kubeloop's client, on a kept connection | h11, and the same bytes in other pieces |
| chunked | kubeloop's chunked framing | h11 |
| h2 | the resolver, from a client, held and then released | the same bytes in other pieces; hpack, on what the pod was sent |
| hpack | the resolver's reader of statuses | hpack |
| watch | kubeloop's lines and events | json, and the same bytes in other pieces |
| ignore | an expression of a rule, and an agent | for plain letters, `in`; with a cookie, nothing is ignored |
| pod | the resolver, from a pod, and the next request of the same client | h11 |
| pod_h2 | the resolver, from a pod with two streams | the same bytes in other pieces |
| tcp | the resolver, from both ends of a TCP connection | the bytes themselves |
| shared | the resolver's shared port | h11 and hpack, on whom the requests that a pod was sent are for |
| list | kubeloop's lists, by type | json |
| first_message | what a TCP connection begins with | the beginnings of the same bytes |
| kubeconfig | kubeloop's kubeconfig | nothing: a ConfigError that names the file, or a configuration |

The first byte of a case seeds how the rest is cut into pieces, so that a file holds all of a case.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import cast

import h11
import hpack
import httptools
from tests.http.chunk_readers import by_h11, feed_all
from tests.resolver.proxy.fakes import POD, ConnectionRig, FakeTransport
from tests.resolver.proxy.request_readers import (
    assert_both_read_the_same,
    read_by_h11,
    read_by_httptools,
)

from elasti.api.types import IgnoreRule
from elasti.resolver.proxy.first_message import PROXY_SIGNATURE, is_first_message
from elasti.resolver.proxy.h2 import frames as h2
from elasti.resolver.proxy.h2.header_blocks import HeaderBlockAssembler
from elasti.resolver.proxy.h2.header_fields import StatusReader
from elasti.resolver.proxy.tcp import is_proxy_header
from elasti.resolver.services.ignored import IgnoredRequests
from kubeloop.client.config.kubeconfig import parse_kubeconfig
from kubeloop.client.errors import ConfigError
from kubeloop.client.wire.watch import LineSplitter
from kubeloop.http.connection import Connection
from kubeloop.http.framing import FramingError
from kubeloop.http.server import HttpServer, Request, Response
from kubeloop.objects.codec import codec_for
from kubeloop.objects.list_watch import DecodeError
from tests.fuzz import pods

_KUBECONFIG = Path("/home/user/.kube/config")


def pieces_of(case: bytes) -> list[bytes]:
    """Cut a case as its first byte says."""
    seed, data = case[:1], case[1:]
    rng = random.Random(seed)
    cuts = sorted(rng.randrange(len(data) + 1) for _ in range(rng.choice((0, 0, 1, 4))))
    return [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True) if a < b]


_UPGRADE = re.compile(rb"(?i)\r\nupgrade:")


def http1(case: bytes) -> None:
    rig = ConnectionRig()
    for piece in pieces_of(case):
        rig.client.feed(piece)
    for pod in rig.pods:
        # A parser that refuses a request cannot be led to read another one; h11 must take it.
        with contextlib.suppress(httptools.HttpParserError):
            assert_both_read_the_same(pod.written)
    rig.end()
    found = asyncio.run(_served(pieces_of(case)))
    theirs: list[tuple[bytes, bytes, bytes]] = []
    try:
        read_by_h11(case[1:], theirs)
    except h11.RemoteProtocolError as error:
        if _is_framing(error):
            found = found[: len(theirs)]
    if _UPGRADE.search(case):
        # h11 waits for a switch of protocols, which a server may decline and read on.
        found = found[: len(theirs)]
    assert found == theirs[: len(found)]
    with contextlib.suppress(httptools.HttpParserError):
        by_httptools = read_by_httptools(case[1:])
        if by_httptools is not None:
            assert found[: len(by_httptools)] == by_httptools[: len(found)]


async def _served(pieces: list[bytes]) -> list[tuple[bytes, bytes, bytes]]:
    """Return the requests that kubeloop's server hands to its handler."""
    found: list[tuple[bytes, bytes, bytes]] = []

    async def handle(request: Request) -> Response:
        found.append((request.method.encode(), request.target.encode(), request.body))
        return Response(body=b"ok")

    server = HttpServer(handle)
    connection = server.connection()
    transport = FakeTransport(connection)
    connection.connection_made(cast(asyncio.Transport, transport))
    for piece in pieces:
        _feed(transport, piece)
        while server.tasks:
            await asyncio.gather(*server.tasks)
    if not transport.closing:
        transport.lose()
    return found


def _feed(transport: FakeTransport, piece: bytes) -> None:
    """Feed a protocol as the loop does, in as many reads as its buffer takes."""
    protocol = transport.protocol
    while piece and not transport.closing and transport.reading:
        buffer = protocol.get_buffer(-1)
        taken, piece = piece[: len(buffer)], piece[len(buffer) :]
        buffer[: len(taken)] = taken
        protocol.buffer_updated(len(taken))


def answer(case: bytes) -> None:
    read, in_pieces = asyncio.run(_answered_twice([case[1:]], pieces_of(case)))
    assert read == in_pieces
    if read is not None and (theirs := _answer_by_h11(case[1:])) is not None:
        assert read == theirs


async def _answered_twice(*ways: list[bytes]) -> list[tuple[int, bytes] | None]:
    return [await _answered(pieces) for pieces in ways]


async def _answered(pieces: list[bytes]) -> tuple[int, bytes] | None:
    """Return the answer that kubeloop's client reads, None if there is not a whole one."""
    connection = Connection()
    transport = FakeTransport(connection)
    connection.connection_made(cast(asyncio.Transport, transport))
    for piece in pieces:
        _feed(transport, piece)
    connection.eof_received()
    transport.lose()
    try:
        head = await connection.head()
    except (FramingError, ConnectionError):
        return None
    body = await connection.read()
    return (head.status, body) if connection.complete and not connection.error else None


def _answer_by_h11(wire: bytes) -> tuple[int, bytes] | None:
    """Return the final answer that h11 reads, None if it refuses the bytes or finds no end."""
    connection = h11.Connection(h11.CLIENT)
    connection.send(h11.Request(method="GET", target="/", headers=[("Host", "x")]))
    connection.send(h11.EndOfMessage())
    connection.receive_data(wire)
    connection.receive_data(b"")
    status, body = 0, b""
    try:
        while True:
            match event := connection.next_event():
                case h11.Response():
                    status = event.status_code
                case h11.Data():
                    body += event.data
                case h11.EndOfMessage():
                    return status, body
                case h11.NEED_DATA | h11.PAUSED | h11.ConnectionClosed():
                    return None
    except h11.RemoteProtocolError:
        return None


def chunked(case: bytes) -> None:
    try:
        body, framing = feed_all(pieces_of(case))
    except FramingError:
        return
    with _framing_in_trailers():
        assert (body, framing.finished) == by_h11(case[1:])


@contextlib.contextmanager
def _framing_in_trailers() -> Iterator[None]:
    """Let h11 refuse trailers that frame a message: a connection of ours carries one answer, and none follows."""
    try:
        yield
    except h11.RemoteProtocolError as error:
        if not _is_framing(error):
            raise


def _is_framing(error: h11.RemoteProtocolError) -> bool:
    return "Transfer-Encoding" in str(error) or "Content-Length" in str(error)


def h2_frames(case: bytes) -> None:
    assert _walked([case[1:]]) == _walked(pieces_of(case))
    _to_pods(pieces_of(case), b"")
    held = pods.asked()
    assert _to_pods([case[1:]], held) == _to_pods(pieces_of(case), held)


def _to_pods(pieces: list[bytes], held: bytes) -> bytes:
    """Return what pods are sent; the pieces come after the pod, if something was held before."""
    rig = ConnectionRig(pods=())
    rig.client.feed(h2.PREFACE + held)
    if held:
        rig.upstream.release(POD)
    for piece in pieces:
        rig.client.feed(piece)
    rig.upstream.release(POD)
    if not held:  # later blocks pass as they are
        for pod in rig.pods:
            _read_by_hpack(pod.written)
    rig.end()
    return b"".join(pod.written for pod in rig.pods)


def _walked(pieces: list[bytes]) -> tuple[bytes, list[tuple[int, int, int, int]]]:
    walker, passed, found = h2.H2FrameWalker(), b"", []
    for piece in pieces:
        data, frames = walker.walk(piece)
        passed += data
        found += [(frame.length, frame.kind, frame.flags, frame.stream) for frame in frames]
    return passed, found


def _read_by_hpack(wire: bytes) -> None:
    """Read every header block that a pod was sent, with one table from the start."""
    if not wire.startswith(h2.PREFACE):
        return
    data, decoder, blocks = wire[len(h2.PREFACE) :], hpack.Decoder(), HeaderBlockAssembler()
    for frame in h2.H2FrameWalker(whole_blocks=True).walk(data)[1]:
        payload = data[frame.at + h2.HEADER_SIZE : frame.end]
        if frame.kind in h2.BLOCKS and (block := blocks.add(frame, payload)) is not None:
            decoder.decode(block.fragment, raw=True)


def hpack_blocks(case: bytes) -> None:
    """Read a header block: where hpack finds good statuses, the first of them is ours."""
    block = case[1:]
    try:
        fields = hpack.Decoder().decode(block, raw=True)
    except (hpack.HPACKError, UnicodeDecodeError):
        fields = None
    try:
        ours = StatusReader().read(block)
    except ValueError:
        ours = -1
    if fields is not None:
        theirs = [bytes(value) for name, value, *_ in fields if name == b":status"]
        if all(map(_is_status, theirs)):
            assert ours == (int(theirs[0]) if theirs else None)


def _is_status(value: bytes) -> bool:
    return len(value) == 3 and value.isdigit()


def watch(case: bytes) -> None:
    splitter = LineSplitter()
    lines = [bytes(line) for piece in pieces_of(case) for line in splitter.feed(piece)]
    assert lines == [line for line in case[1:].split(b"\n")[:-1] if line]
    for line in lines:
        try:
            event, theirs = codec_for(dict).decode_event(line), json.loads(line)
        except (DecodeError, ValueError):
            continue  # bytes of a field that is not used are not looked at, though they be no text
        assert theirs["type"] == event.type


def kubeconfig(case: bytes) -> None:
    try:
        parse_kubeconfig(case[1:], _KUBECONFIG)
    except ConfigError as error:
        message = str(error)
    else:
        return
    assert str(_KUBECONFIG) in message


def ignore(case: bytes) -> None:
    """Take an expression up to the first line feed, and an agent behind it."""
    expression, _, agent = case[1:].decode("latin-1").partition("\n")
    rule = IgnoreRule(user_agents=(expression,))
    ignored = IgnoredRequests((), (rule,), agents={})
    found = ignored.answer(_Asked(agent))
    assert ignored.counts == ({"rules[0]": 1} if found else {})
    assert ignored.answer(_Asked(agent, cookie=b"a=b")) is None
    if not _LITERAL.fullmatch(expression):
        return
    assert (found is not None) == (expression in agent and 0 < len(agent) <= 1024)


class _Asked:
    """A request with an agent and few other fields."""

    method, target, host = b"GET", b"/", b"web"

    def __init__(self, agent: str, **fields: bytes) -> None:
        self._fields = {"user-agent": agent.encode("latin-1"), **fields}

    def field(self, name: bytes) -> bytes | None:
        return self._fields.get(name.decode())


_LITERAL = re.compile(r"[A-Za-z0-9 /_-]+")


def first_message(case: bytes) -> None:
    """What is known of a beginning stays true of all that begins so."""
    data, known = case[1:], None
    for size in range(min(len(data), 256) + 1):
        if is_proxy_header(data[:size]) or PROXY_SIGNATURE.startswith(data[:size]):
            continue  # connections wait for the rest of it
        now = is_first_message(data[:size])
        assert known is None or now is known, (data[:size], known, now)
        known = now


TARGETS: Mapping[str, Callable[[bytes], None]] = {
    "http1": http1,
    "answer": answer,
    "chunked": chunked,
    "h2": h2_frames,
    "hpack": hpack_blocks,
    "watch": watch,
    "ignore": ignore,
    "first_message": first_message,
    "pod": lambda case: pods.answered(case[0], pieces_of(case)),
    "pod_h2": lambda case: pods.answered_h2(pieces_of(case)),
    "tcp": lambda case: asyncio.run(pods.tunnelled(case[0], pieces_of(case))),
    "shared": lambda case: pods.shared(pieces_of(case)),
    "list": lambda case: pods.listed(case[1:]),
    "kubeconfig": kubeconfig,
}
