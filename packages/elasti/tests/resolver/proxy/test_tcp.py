"""Ports that are not HTTP: what wakes, what is held, and what passes."""

from __future__ import annotations

import asyncio

import pytest
from tests.resolver.proxy.rig import Rig, hello

from elasti.resolver.proxy.upstream.interface import PortProtocol, Refusal, UpstreamAddress
from kubeloop.aio.relay import RelayEnd, reset
from tests.waiting import eventually


async def speaks_first(pod, reader, writer):
    writer.write(b"220 welcome\r\n")
    while line := await reader.readline():
        pod.requests.append(line)
        writer.write(b"250 " + line)
    writer.write(b"221 bye\r\n")


async def hello_bytes(pod, reader, writer):
    while data := await reader.read(1024):
        writer.write(data)


@pytest.fixture(params=[PortProtocol.TCP, PortProtocol.DETECT])
async def tcp(request):
    async with Rig(protocol=request.param) as rig:
        yield rig


@pytest.mark.parametrize(
    ("app_protocol", "name", "protocol"),
    [
        ("http", None, PortProtocol.HTTP),
        ("HTTP", "tcp-x", PortProtocol.HTTP),
        ("kubernetes.io/h2c", "web", PortProtocol.HTTP),
        (None, "grpc-api", PortProtocol.HTTP),
        (None, "http2", PortProtocol.HTTP),
        ("https", "http", PortProtocol.TLS),
        (None, "https-web", PortProtocol.TLS),
        (None, "tls", PortProtocol.TLS),
        (None, "tcp-postgres", PortProtocol.TCP),
        ("tcp", "http", PortProtocol.TCP),
        (None, None, PortProtocol.DETECT),
        (None, "web", PortProtocol.DETECT),
        (None, "httpbin", PortProtocol.DETECT),
    ],
)
def test_a_port_speaks_what_it_says(app_protocol, name, protocol):
    assert PortProtocol.of_port(app_protocol=app_protocol, name=name) is protocol


async def test_a_server_that_speaks_first_is_heard(tcp):
    pod = await tcp.pod(speaks_first)
    client = await tcp.connect()
    assert await client.read(13) == b"220 welcome\r\n"
    client.send(b"HELO x\r\n")
    assert await client.read(12) == b"250 HELO x\r\n"
    client.writer.write_eof()
    assert await client.rest() == b"221 bye\r\n"
    assert pod.requests == [b"HELO x\r\n"]
    await eventually(lambda: tcp.statistics.connections == 0)


async def test_bytes_wake_at_once_and_arrive_after_the_release(tcp):
    pod = await tcp.pod(speaks_first, ready=False)
    client = await tcp.connect()
    client.send(b"\x00\x01 binary\r\n")
    await tcp.held()
    assert tcp.upstream.arrivals == 1
    tcp.upstream.release(pod.address)
    assert await client.read(13) == b"220 welcome\r\n"
    assert await client.read(15) == b"250 \x00\x01 binary\r\n"
    assert tcp.statistics.tunnels == 1


@pytest.mark.virtual_time
async def test_a_silent_connection_wakes_after_a_second(tcp):
    client = await tcp.connect()
    await asyncio.sleep(0.99)
    assert tcp.upstream.waiting == []
    await asyncio.sleep(0.02)
    assert len(tcp.upstream.waiting) == 1
    assert tcp.upstream.arrivals == 1
    await client.aclose()


@pytest.mark.virtual_time
async def test_a_port_scan_does_not_wake(tcp):
    client = await tcp.connect()
    await asyncio.sleep(0.5)
    await client.aclose()
    await asyncio.sleep(5)
    assert (tcp.upstream.arrivals, tcp.upstream.waiting) == (0, [])


PROXY_1 = b"PROXY TCP4 192.0.2.1 192.0.2.2 56324 443\r\n"
PROXY_2 = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c" + bytes(12)


@pytest.mark.virtual_time
@pytest.mark.parametrize("header", [PROXY_1, PROXY_2, PROXY_2[:14]], ids=["1", "2", "part"])
async def test_a_check_that_sends_a_proxy_header_does_not_wake(tcp, header):
    client = await tcp.connect()
    client.send(header)
    await asyncio.sleep(0.5)
    await client.aclose()
    await asyncio.sleep(5)
    assert (tcp.upstream.arrivals, tcp.upstream.waiting) == (0, [])


@pytest.mark.virtual_time
@pytest.mark.parametrize("header", [PROXY_1, PROXY_2])
async def test_a_client_behind_a_proxy_header_wakes_and_its_header_arrives(tcp, header):
    pod = await tcp.pod(hello_bytes, ready=False)
    patient, speaks = await tcp.connect(), await tcp.connect()
    for client in (patient, speaks):
        client.send(header)
    await asyncio.sleep(0.1)
    speaks.send(b"x")
    await tcp.held()
    await asyncio.sleep(1)
    await tcp.held(2)
    tcp.upstream.release(pod.address)
    assert await speaks.read(len(header) + 1) == header + b"x"
    assert await patient.read(len(header)) == header


@pytest.mark.parametrize("header", [PROXY_1, PROXY_2])
async def test_a_check_with_a_proxy_header_does_not_count_as_use_while_pods_answer(tcp, header):
    await tcp.pod(hello_bytes)
    client = await tcp.connect()
    client.send(header)
    assert await client.read(len(header)) == header
    await client.aclose()
    await eventually(lambda: tcp.statistics.connections == 0)
    assert tcp.upstream.arrivals == 0


async def test_with_first_byte_silence_does_not_wake(tcp):
    await tcp.pod(speaks_first, ready=False)
    tcp.upstream.tcp_wake = "FirstByte"
    client = await tcp.connect()
    await asyncio.sleep(1.2)
    assert (tcp.upstream.arrivals, tcp.upstream.waiting) == (0, [])
    client.send(b"x")
    await tcp.held()
    assert tcp.upstream.arrivals == 1


async def test_with_protocol_only_a_message_wakes(tcp):
    await tcp.pod(speaks_first, ready=False)
    tcp.upstream.tcp_wake = "Protocol"
    scan = await tcp.connect()
    scan.send(b"\x00\x00scan\r\n\r\n")
    with pytest.raises(ConnectionResetError):
        await scan.rest()
    assert (tcp.upstream.arrivals, tcp.upstream.ignored_by) == (0, ["tcp"])
    client = await tcp.connect()
    client.send(b"*1\r\n")
    await asyncio.sleep(0.05)
    assert tcp.upstream.arrivals == 0
    client.send(b"$4\r\nPING\r\n")
    await tcp.held()
    assert tcp.upstream.arrivals == 1


async def test_a_port_scan_does_not_count_as_use_while_pods_answer(tcp):
    await tcp.pod(speaks_first)
    client = await tcp.connect()
    await client.read(13)
    await client.aclose()
    await eventually(lambda: tcp.statistics.connections == 0)
    assert tcp.upstream.arrivals == 0


async def test_a_held_connection_is_read_to_a_bound(tcp):
    got = 0

    async def sink(pod, reader, writer):
        nonlocal got
        while data := await reader.read(1_000_000):
            got += len(data)
        writer.write(b"%d" % got)

    pod = await tcp.pod(sink, ready=False)
    client = await tcp.connect()
    client.send(b"\x00" * 10_000_000)
    await tcp.held()
    done, _ = await asyncio.wait([asyncio.create_task(client.writer.drain())], timeout=0.2)
    assert not done
    assert tcp.statistics.received < 700_000
    tcp.upstream.release(pod.address)
    client.writer.write_eof()
    assert await client.rest() == b"10000000"


async def test_a_refused_connection_is_closed(tcp):
    client = await tcp.connect()
    client.send(b"\x00")
    await tcp.held()
    tcp.upstream.refuse_all(Refusal.TIMEOUT)
    with pytest.raises(ConnectionResetError):
        await client.rest()
    assert tcp.statistics.outcomes == {"timeout": 1}


async def test_a_held_client_that_goes_away_leaves_the_queue(tcp):
    client = await tcp.connect()
    client.send(b"\x00")
    await tcp.held()
    reset(client.writer.transport)
    await tcp.held(0)
    assert tcp.statistics.outcomes == {"client_gone": 1}


async def test_a_pod_that_refuses_puts_the_connection_back(tcp):
    pod = await tcp.pod(speaks_first, ready=False)
    client = await tcp.connect()
    client.send(b"x\r\n")
    await tcp.held()
    tcp.upstream.release(UpstreamAddress("127.0.0.1", 1))
    await tcp.held()
    tcp.upstream.release(pod.address)
    assert await client.read(20) == b"220 welcome\r\n250 x\r\n"


async def test_a_pod_that_refuses_a_silent_connection_does_not_wake(tcp):
    tcp.upstream.pods.append(UpstreamAddress("127.0.0.1", 1))
    client = await tcp.connect()
    await eventually(
        lambda: tcp.handler.pool._attempts or tcp.handler.protocol is PortProtocol.DETECT
    )
    await client.aclose()
    await eventually(lambda: tcp.statistics.connections == 0)
    assert tcp.upstream.waiting == []


async def test_a_reset_passes_through(tcp):
    async def handler(pod, reader, writer):
        await reader.readexactly(1)
        reset(writer.transport)

    await tcp.pod(handler)
    client = await tcp.connect()
    client.send(b"\x00")
    with pytest.raises(ConnectionResetError):
        await client.rest()


async def test_a_slow_reader_stops_the_pod(tcp):
    sent = 0

    async def handler(pod, reader, writer):
        nonlocal sent
        await reader.readexactly(1)
        while sent < 50_000_000:
            writer.write(b"x" * 100_000)
            await writer.drain()
            sent += 100_000

    await tcp.pod(handler)
    client = await tcp.connect(limit=10_000)
    client.send(b"\x00")
    # The pod is not read any more: what is on its way was bounded before.
    (transport,) = tcp.handler._transports
    await eventually(lambda: isinstance(transport.get_protocol(), RelayEnd))
    pod_side = transport.get_protocol()._other._transport
    await eventually(lambda: not pod_side.is_reading())
    assert sent < 25_000_000
    assert len(await client.rest()) == 50_000_000


@pytest.mark.parametrize("first", [b"GET /x HTTP/1.1\r\n", b"G", b"GET ", b"GET /x HTTP/1."])
async def test_http_is_recognized_on_an_undeclared_port(first):
    async with Rig(protocol=PortProtocol.DETECT) as rig:
        pod = await rig.pod(hello)
        client = await rig.connect()
        whole = b"GET /x HTTP/1.1\r\nHost: a\r\n\r\n"
        client.send(first)
        await client.writer.drain()
        await eventually(lambda: rig.statistics.received == len(first))
        client.send(whole[len(first) :])
        assert (await client.response())[2] == b"GET /x HTTP/1.1|"
        assert b"X-Forwarded-For" in pod.requests[0]


@pytest.mark.parametrize(
    "first", [b"GET key\r\n", b"SET a b\r\n", b"\x16\x03\x01", b"get / HTTP/1.1\r\n"]
)
async def test_what_is_not_http_passes_as_bytes(first):
    async def echo(pod, reader, writer):
        writer.write(await reader.read(1000))

    async with Rig(protocol=PortProtocol.DETECT) as rig:
        await rig.pod(echo)
        client = await rig.connect()
        client.send(first)
        assert await client.rest() == first


@pytest.mark.virtual_time
async def test_a_silent_connection_on_a_tls_port_does_not_wake():
    async with Rig(protocol=PortProtocol.TLS) as rig:
        client = await rig.connect()
        await asyncio.sleep(30)
        assert rig.upstream.waiting == []
        client.send(b"\x16")
        await rig.held()
        assert rig.upstream.arrivals == 1


@pytest.mark.virtual_time
async def test_a_client_that_never_spoke_and_closes_while_it_is_held_leaves_the_queue(tcp):
    client = await tcp.connect()
    await asyncio.sleep(1.5)
    assert len(tcp.upstream.waiting) == 1
    await client.aclose()
    await tcp.held(0)
    await eventually(lambda: tcp.statistics.connections == 0)


@pytest.mark.parametrize(
    ("protocol", "said"),
    [(PortProtocol.TLS, b"\x16"), (PortProtocol.TCP, b"\x16\x03\x01"), (None, b"\x16\x03\x03\x01")],
)
async def test_a_tls_client_that_closes_while_it_is_held_leaves_the_queue(protocol, said):
    async with Rig(protocol=protocol or PortProtocol.DETECT) as rig:
        client = await rig.connect()
        client.send(said)
        await rig.held()
        await client.aclose()
        await rig.held(0)


async def test_a_half_closed_client_still_gets_its_answer(tcp):
    pod = await tcp.pod(speaks_first, ready=False)
    client = await tcp.connect()
    client.send(b"once\r\n")
    await tcp.held()
    client.writer.write_eof()
    await eventually(lambda: any(waiter._eof for waiter in tcp.upstream.waiting))
    tcp.upstream.release(pod.address)
    assert await client.rest() == b"220 welcome\r\n250 once\r\n221 bye\r\n"
