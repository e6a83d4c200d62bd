"""What pods send to the resolver, and lists that a server sends: targets beside those of `targets`."""

from __future__ import annotations

import json
import re
from typing import Any

import h11
import hpack
from tests.resolver.proxy.fakes import POD, ConnectionRig
from tests.resolver.proxy.h2_peers import request_fields

from elasti.resolver.proxy.h2 import frames as h2
from elasti.resolver.proxy.h2.header_blocks import HeaderBlockAssembler
from elasti.resolver.proxy.upstream.interface import PortProtocol
from kubeloop.objects.codec import Codec, codec_for
from kubeloop.objects.list_watch import DecodeError
from kubeloop.objects.meta import PartialObjectMetadata

_REQUESTS = (
    b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
    b"HEAD / HTTP/1.1\r\nHost: a\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello",
    b"GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n",
)
_SECOND = b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nsecond"


def answered(seed: int, pieces: list[bytes]) -> None:
    """Play an answer of a pod: a client reads of it what h11 does, or its connection breaks off.

    What a pod sends beyond its answer is never the answer to the next request on a connection.
    """
    request = _REQUESTS[seed % len(_REQUESTS)]
    rig = ConnectionRig()
    rig.client.feed(request)
    (pod,) = rig.pods
    for piece in pieces:
        pod.feed(piece)
    theirs, ours = _read(b"".join(pieces), request), _read(rig.client.written, request)
    if ours is not None and ours[0] == 502:
        ours = None  # the resolver's own: it refused what the pod sent
    if theirs is not None and ours is not None:
        assert ours == theirs, (ours, theirs)
    if ours is not None and not rig.client.closing and b" 101 " not in rig.client.written:
        before = len(rig.client.written)
        rig.client.feed(_REQUESTS[0])
        if not rig.client.closing:
            assert len(rig.client.written) == before, rig.client.written[before:]
            rig.pods[-1].feed(_SECOND)
            assert _read(rig.client.written[before:], _REQUESTS[0]) == (200, b"second")
    rig.end()


def _read(wire: bytes, request: bytes) -> tuple[int, bytes] | None:
    """Return the final answer that h11 reads, None if it refuses the bytes or they are not a whole one."""
    connection = h11.Connection(h11.CLIENT)
    method = request.split(b" ")[0]
    connection.send(h11.Request(method=method, target="/", headers=[("Host", "a")]))
    connection.send(h11.EndOfMessage())
    connection.receive_data(wire)
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


def answered_h2(pieces: list[bytes]) -> None:
    """Play frames of a pod: in whatever pieces they come, its client is sent the same."""
    assert _sent_on([b"".join(pieces)]) == _sent_on(pieces)


def asked() -> bytes:
    """Return what a client with two requests sends after its preface."""
    encoder, wire = hpack.Encoder(), h2.frame(h2.SETTINGS)
    for stream in (1, 3):
        block, flags = encoder.encode(request_fields(b"/")), h2.END_HEADERS | h2.END_STREAM
        wire += h2.frame(h2.HEADERS, flags=flags, stream=stream, payload=block)
    return wire


def _sent_on(pieces: list[bytes]) -> tuple[bytes, bool]:
    rig = ConnectionRig()
    rig.client.feed(h2.PREFACE + asked())
    (pod,) = rig.pods
    for piece in pieces:
        pod.feed(piece)
    found = rig.client.written, rig.client.closing
    rig.end()
    return found


async def tunnelled(seed: int, pieces: list[bytes]) -> None:
    """Play a TCP connection: what either side sends reaches the other, byte for byte."""
    rig = ConnectionRig(protocol=PortProtocol.TCP, pods=[POD] if seed % 2 else [])
    half = len(pieces) // 2
    for piece in pieces[:half]:
        rig.client.feed(piece)
    rig.upstream.release(POD)
    for piece in pieces[half:]:
        rig.client.feed(piece)
    for pod in rig.pods:
        assert pod.written == b"".join(pieces)
        for piece in pieces:
            pod.feed(piece)
        assert rig.client.written == b"".join(pieces)
    rig.end()


_CODECS: list[Codec[Any]] = [
    codec_for(dict),
    codec_for(dict, managed_fields=False),
    codec_for(PartialObjectMetadata),
]


def listed(data: bytes) -> None:
    """Read a list: a DecodeError, or as many items as json finds, and the dictionaries that it makes."""
    for codec in _CODECS:
        try:
            page = codec.decode_page(data)
        except DecodeError:
            continue
        try:
            theirs = json.loads(data)
        except (ValueError, RecursionError):
            continue  # bytes of a field that is not used are not looked at, though they be no text
        assert len(page.items) == len(theirs.get("items") or [])
        for mine, other in zip(page.items, theirs.get("items") or [], strict=True):
            if codec is _CODECS[0]:
                assert {**other, **mine} == mine


def shared(pieces: list[bytes]) -> None:
    """Play a client of the shared port whose connection is `a`'s by its first request: no pod gets one for another."""
    rig = ConnectionRig(accepts=lambda request: request.host == b"a")
    for piece in pieces:
        rig.client.feed(piece)
    for pod in rig.pods:
        if pod.written.startswith(h2.PREFACE):
            assert _authorities(pod.written[len(h2.PREFACE) :]) <= {b"a"}
        else:
            assert len(_hosts(pod.written)) <= 1  # the listener has looked at the first
    rig.end()


def _authorities(wire: bytes) -> set[bytes]:
    decoder, blocks, found = hpack.Decoder(), HeaderBlockAssembler(), set[bytes]()
    for frame in h2.H2FrameWalker(whole_blocks=True).walk(wire)[1]:
        payload = wire[frame.at + h2.HEADER_SIZE : frame.end]
        if frame.kind in h2.BLOCKS and (block := blocks.add(frame, payload)) is not None:
            fields = dict(decoder.decode(block.fragment, raw=True))
            if b":method" in fields:  # others are trailers, or no pod takes them
                found.add(bytes(fields.get(b":authority") or fields.get(b"host") or b""))
    return found


def _hosts(wire: bytes) -> set[bytes]:
    """Return whom the requests that h11 reads are for, by their targets and by their fields."""
    connection, found = h11.Connection(h11.SERVER), set[bytes]()
    connection.receive_data(bytes(byte if byte < 0x80 else 0x78 for byte in wire))
    while not isinstance(event := connection.next_event(), type(h11.NEED_DATA) | type(h11.PAUSED)):
        if isinstance(event, h11.Request):
            found.add(dict(event.headers).get(b"host", b"").lower())
            if absolute := re.match(rb"[A-Za-z]+://([^/?#]*)", event.target):
                found.add(absolute[1].lower())
        elif isinstance(event, h11.EndOfMessage):
            break
    found.discard(b"")  # a request of HTTP/1.0 may have none
    return found | ({b"another"} if b" HTTP/1." in connection.trailing_data[0] else set())
