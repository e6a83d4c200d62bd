"""What is held is bounded to the byte, however the client sends it and whatever it speaks."""

from __future__ import annotations

import pytest
from tests.resolver.proxy.rig import Rig

from elasti.resolver.proxy.h2 import frames as h2
from elasti.resolver.proxy.limits import Limits
from elasti.resolver.proxy.upstream.interface import PortProtocol
from tests.waiting import eventually

BOUND = Limits().held_bytes
SIZE = 10_000_000
HEADS = {
    "of a length": b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10000000\r\n\r\n",
    "chunked": b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n989680\r\n",
    "with a large head": b"POST / HTTP/1.1\r\nHost: a\r\nX: "
    + b"y" * 60_000
    + b"\r\nContent-Length: 10000000\r\n\r\n",
}


async def sink(pod, reader, writer):
    """Count what comes, and say it at the end."""
    got = 0
    while data := await reader.read(1_000_000):
        got += len(data)
    writer.write(b"%d" % got)


async def upload(pod, reader, writer):
    """Take a whole upload, then answer."""
    await reader.readuntil(b"\r\n\r\n")
    got = 0
    while got < SIZE:
        got += len(await reader.read(1_000_000))
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok")


@pytest.mark.parametrize("head", HEADS.values(), ids=HEADS)
@pytest.mark.parametrize("together", [True, False])
async def test_a_held_upload_is_read_to_the_bound_and_goes_on_after_it(rig, head, together):
    pod = await rig.pod(upload, ready=False)
    client = await rig.connect()
    client.send(head)
    if not together:
        await rig.held()
    body = b"x" * SIZE + (b"\r\n0\r\n\r\n" if b"chunked" in head else b"")
    client.send(body)
    await rig.held()
    await rig.paused()
    assert rig.statistics.received <= max(BOUND, len(head) + 1)
    rig.upstream.release(pod.address)
    assert (await client.response())[2] == b"ok"


@pytest.mark.parametrize("protocol", [PortProtocol.TCP, PortProtocol.TLS, PortProtocol.DETECT])
async def test_held_bytes_of_any_protocol_are_read_to_the_bound(protocol):
    async with Rig(protocol=protocol) as rig:
        pod = await rig.pod(sink, ready=False)
        client = await rig.connect()
        client.send(b"\x00" * SIZE)
        client.writer.write_eof()
        await rig.held()
        await rig.paused()
        assert rig.statistics.received <= BOUND
        rig.upstream.release(pod.address)
        assert await client.rest() == b"%d" % SIZE


async def test_held_frames_are_read_to_the_bound(rig):
    pod = await rig.pod(sink, ready=False)
    client = await rig.connect()
    data = h2.frame(h2.DATA, stream=1, payload=b"x" * 10_000) * 500
    request = h2.frame(h2.HEADERS, flags=h2.END_HEADERS, stream=1, payload=b"\x83\x86\x84")
    client.send(h2.PREFACE + h2.frame(h2.SETTINGS) + request + data)
    await rig.held()
    await rig.paused()
    assert rig.statistics.received <= BOUND
    rig.upstream.release(pod.address)
    sent = len(h2.PREFACE + h2.frame(h2.SETTINGS) + request + data)
    await eventually(lambda: rig.statistics.received == sent, timeout=30)
