"""Deadlines and bounds: a peer that must act and does not is not waited for."""

from __future__ import annotations

import asyncio
import socket
from ipaddress import ip_network

import pytest
from tests.resolver.proxy.memory_upstream import MemoryUpstream
from tests.resolver.proxy.rig import HOST, Rig, hello, read_request

from elasti.resolver.proxy.h2 import frames as h2
from elasti.resolver.proxy.limits import Limits
from elasti.resolver.proxy.quota import ClientAddresses
from elasti.resolver.proxy.upstream.interface import PortProtocol, UpstreamAddress
from tests.waiting import eventually


def now() -> float:
    return asyncio.get_running_loop().time()


async def drip(client, data: bytes, every: float) -> None:
    for byte in data:
        client.send(bytes((byte,)))
        await asyncio.sleep(every)


@pytest.mark.virtual_time
async def test_a_head_that_drips_is_not_waited_for(rig):
    client = await rig.connect()
    dripping = asyncio.create_task(drip(client, b"GET / HTTP/1.1\r\nX: " + b"y" * 100, 2.0))
    async with asyncio.timeout(100):
        head = await client.reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 408 ")
    assert 30 <= now() <= 33
    dripping.cancel()
    await asyncio.gather(dripping, return_exceptions=True)


@pytest.mark.virtual_time
@pytest.mark.parametrize(
    "slow",
    [
        h2.PREFACE[:20],
        h2.PREFACE + h2.frame(h2.SETTINGS),
        h2.PREFACE + h2.frame(h2.SETTINGS, payload=b"\0\3\0\0\0\1" * 20),
    ],
    ids=["preface", "short frame", "long frame"],
)
async def test_frames_that_drip_are_not_waited_for(rig, slow):
    client = await rig.connect()
    client.send(slow[:18])
    dripping = asyncio.create_task(drip(client, slow[18:-1], 2.0))
    async with asyncio.timeout(1000):
        # A GOAWAY, perhaps after our own settings.
        assert (await client.reader.read()).endswith(b"\0\0\0\x01")
    # The limit for each frame, and the time that the preface took.
    assert 30 <= now() <= 30 + 2 * 24
    dripping.cancel()
    await asyncio.gather(dripping, return_exceptions=True)


@pytest.mark.virtual_time
async def test_a_body_that_stalls_is_not_waited_for(rig):
    await rig.pod(hello)
    client = await rig.connect()
    client.send(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\nx")
    async with asyncio.timeout(100):
        head = await client.reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 408 ")
    assert 60 <= now() <= 63


@pytest.mark.virtual_time
async def test_a_body_that_drips_is_slow_and_not_stalled(rig):
    await rig.pod(hello)
    client = await rig.connect()
    client.send(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\n")
    await drip(client, b"0123456789", 50.0)
    assert (await client.response())[2] == b"POST / HTTP/1.1|0123456789"
    assert now() >= 450


@pytest.mark.virtual_time
async def test_a_silent_new_connection_is_closed(rig):
    client = await rig.connect()
    async with asyncio.timeout(100):
        assert await client.reader.read() == b""
    assert 60 <= now() <= 63


@pytest.mark.virtual_time
async def test_an_idle_connection_is_kept_for_long_and_then_closed(rig):
    await rig.pod(hello)
    client = await rig.connect()
    client.get()
    await client.response()
    start = now()
    async with asyncio.timeout(1000):
        assert await client.reader.read() == b""
    assert 620 <= now() - start <= 623


@pytest.mark.virtual_time
async def test_a_held_request_has_no_deadline_of_the_data_paths(rig):
    pod = await rig.pod(hello, ready=False)
    client = await rig.connect()
    client.get("/x")
    await rig.held()
    await asyncio.sleep(1000)
    rig.upstream.release(pod.address)
    _, head, body = await client.response()
    assert body == b"GET /x HTTP/1.1|"
    assert b"dur=1000" in head


@pytest.mark.virtual_time
async def test_a_pod_that_takes_a_request_and_never_answers_is_given_up():
    async def silent(pod, reader, writer):
        await reader.read()

    async with Rig(limits=Limits(answer=20.0)) as rig:
        await rig.pod(silent)
        client = await rig.connect()
        client.get()
        async with asyncio.timeout(100):
            head = await client.reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 504 ")
        assert 20 <= now() <= 23


@pytest.mark.virtual_time
async def test_a_quiet_stream_is_not_given_up(rig):
    async def quiet(pod, reader, writer):
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        await asyncio.sleep(1000)
        writer.write(b"at last")

    await rig.pod(quiet)
    client = await rig.connect()
    client.get()
    await client.head()
    async with asyncio.timeout(2000):
        assert await client.reader.readexactly(7) == b"at last"


@pytest.mark.virtual_time
async def test_a_client_that_does_not_read_is_cut():
    async def endless(pod, reader, writer):
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            writer.write(b"x" * 100_000)
            await writer.drain()

    async with Rig() as rig:
        await rig.pod(endless)
        client = await rig.connect(limit=1000)
        client.get()
        await eventually(lambda: rig.statistics.active == 1, timeout=100)
        async with asyncio.timeout(2000):
            while rig.statistics.connections:  # noqa: ASYNC110
                await asyncio.sleep(1)
        assert 300 <= now() <= 310


def proves_parallel(rig: Rig) -> None:
    """Let the pod be known to serve several connections at once."""
    (known,) = rig.path.pool._pod_pools.values()
    known.parallel.proven = True


@pytest.mark.virtual_time
@pytest.mark.parametrize("proven", [False, True])
async def test_idle_connections_to_pods_are_closed_by_age(rig, proven):
    pod = await rig.pod(hello)
    client = await rig.connect()
    client.get()
    await client.response()
    if proven:
        proves_parallel(rig)
    await asyncio.sleep(0.5)
    assert rig.handler.pods.used == 1
    await asyncio.sleep(3)
    assert rig.handler.pods.used == proven
    await asyncio.sleep(30)
    assert rig.handler.pods.used == 0
    client.get()
    await client.response()
    assert pod.connections == 2


@pytest.mark.virtual_time
async def test_a_request_that_cannot_be_repeated_takes_only_a_warm_connection(rig):
    pod = await rig.pod(hello)
    client = await rig.connect()
    post = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nx"
    for _ in range(3):
        client.send(post)
        await client.response()
    assert pod.connections == 1
    proves_parallel(rig)
    await asyncio.sleep(5)
    client.get()
    await client.response()
    assert pod.connections == 1
    await asyncio.sleep(5)
    client.send(post)
    await client.response()
    assert pod.connections == 2


# numbers


async def test_a_port_with_too_many_connections_says_so_and_others_are_served():
    limits = Limits(max_clients=12, reserved_clients=3)
    async with Rig(limits=limits) as rig:
        await rig.pod(hello)
        other_target = MemoryUpstream(*rig.upstream.pods)
        other = rig.path.handler(other_target, PortProtocol.HTTP)
        port = await rig.listen(other)
        greedy = [await rig.connect() for _ in range(14)]
        await eventually(lambda: rig.statistics.connections + rig.statistics.refused == 14)
        assert rig.statistics.connections == 9
        for client in greedy[9:]:
            status, head, body = await client.response()
            assert status == 503
            assert b"Retry-After" in head
            assert b"too many open connections" in body
            assert await client.rest() == b""
        modest = await rig.connect(port)
        modest.get()
        assert (await modest.response())[0] == 200
        await greedy[0].aclose()
        await eventually(lambda: rig.statistics.connections == 8)
        late = await rig.connect()
        late.get()
        assert (await late.response())[0] == 200
        other.close()


@pytest.mark.parametrize("state", ["silent", "idle", "held"])
async def test_the_youngest_of_the_largest_service_end_for_one_that_has_few(state):
    async with Rig(limits=Limits(max_clients=120, reserved_clients=4)) as rig:
        pod = await rig.pod(hello)
        other = rig.path.handler(MemoryUpstream(*rig.upstream.pods), PortProtocol.HTTP)
        port = await rig.listen(other)
        if state == "held":
            rig.upstream.pods.clear()
        greedy = []
        for _ in range(113):
            client = await rig.connect()
            if state != "silent":
                client.get()
            if state == "idle":
                assert (await client.response())[0] == 200
            greedy.append(client)
        await eventually(lambda: rig.statistics.connections == 113)
        if state == "held":
            await rig.held(113)
        for _ in range(15):
            modest = await rig.connect(port)
            modest.get()
            assert (await modest.response())[0] == 200
        assert other.connections == 15
        ended = rig.statistics.refused
        assert ended >= 15 - 4 - 3
        for client in greedy[-ended:]:
            if state == "held":
                assert (await client.response())[0] == 503
            assert await client.rest() == b""
        # The others go on.
        rig.upstream.release(pod.address)
        if state != "held":
            greedy[0].get()
        assert (await greedy[0].response())[0] == 200
        other.close()


async def test_a_client_address_has_so_many_connections_and_others_have_theirs():
    limits = Limits(max_per_client=5, unlimited_clients=(ip_network("127.0.0.9"),))
    async with Rig(limits=limits) as rig:
        await rig.pod(hello)

        async def status(address: str, port: int = rig.port) -> int:
            reader, writer = await asyncio.open_connection(HOST, port, local_addr=(address, 0))
            writers.append(writer)
            writer.write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
            return int((await reader.readuntil(b"\r\n"))[9:12])

        writers: list[asyncio.StreamWriter] = []
        assert [await status("127.0.0.2") for _ in range(7)] == [200] * 5 + [503] * 2
        assert [await status("127.0.0.3") for _ in range(2)] == [200] * 2
        assert [await status("127.0.0.9") for _ in range(7)] == [200] * 7
        other = rig.path.handler(MemoryUpstream(*rig.upstream.pods), PortProtocol.HTTP)
        port = await rig.listen(other)
        few = [await status("127.0.0.2", port) for _ in range(6)]
        assert few == [200] * 4 + [503] * 2, "a Service can be woken from any address"
        other.close()
        for writer in writers[:3]:
            writer.close()
        await eventually(lambda: rig.statistics.connections == 5 + 2 + 7 - 3)
        assert [await status("127.0.0.2") for _ in range(4)] == [200] * 3 + [503]
        for writer in writers:
            writer.close()
        await eventually(lambda: not rig.path.addresses._counts)


@pytest.mark.parametrize(
    ("addresses", "keys"),
    [
        (["10.0.0.1", "::ffff:10.0.0.1", "10.0.0.2"], ["10.0.0.1", "10.0.0.1", "10.0.0.2"]),
        (["2001:db8::1", "2001:db8::2:0:0:1"], ["2001:db8::/64", "2001:db8::/64"]),
        (["2001:db8:0:1::1", "fe80::1%eth0"], ["2001:db8:0:1::/64", "fe80::/64"]),
        (["192.168.1.9", "::ffff:192.168.1.9", "fd00::7", "nonsense", ""], [""] * 5),
    ],
)
def test_clients_count_by_address_or_by_the_network_of_a_host(addresses, keys):
    exempt = (ip_network("192.168.0.0/16"), ip_network("fd00::/8"))
    clients = ClientAddresses(most=1, exempt=exempt)
    assert [clients.add(address) for address in addresses] == keys
    for key in keys:
        clients.remove(key)
    assert not clients._counts


async def test_a_tcp_port_with_too_many_connections_closes():
    async with Rig(limits=Limits(max_clients=1), protocol=PortProtocol.TCP) as rig:
        await rig.connect()
        await eventually(lambda: rig.statistics.connections == 1)
        client = await rig.connect()
        assert await client.rest() == b""


async def test_a_crowd_is_served_over_as_many_connections_as_there_may_be():
    limits = Limits(max_pods=4, reserved_pods=2)
    async with Rig(limits=limits) as rig:
        pod = await rig.pod(hello, ready=False)
        clients = [await rig.connect() for _ in range(50)]
        for number, client in enumerate(clients):
            client.get(f"/{number}")
        await rig.held(50)
        rig.upstream.release(pod.address)
        for number, client in enumerate(clients):
            assert (await client.response())[2] == b"GET /%d HTTP/1.1|" % number
        assert pod.connections <= 4


@pytest.mark.virtual_time
@pytest.mark.parametrize("protocol", [PortProtocol.HTTP, PortProtocol.TCP])
async def test_a_request_without_a_pod_descriptor_is_refused_in_time(protocol):
    async def endless(pod, reader, writer):
        await reader.read()

    limits = Limits(max_pods=1, reserved_pods=0)
    async with Rig(limits=limits, protocol=protocol) as rig:
        pod = await rig.pod(endless)
        first, second = await rig.connect(), await rig.connect()
        first.get()
        await eventually(lambda: pod.connections == 1, timeout=100)
        second.get()
        async with asyncio.timeout(100):
            if protocol is PortProtocol.HTTP:
                assert b" 503 " in await second.reader.readuntil(b"\r\n\r\n")
            else:
                with pytest.raises(ConnectionResetError):
                    await second.reader.read()
        assert 60 <= now() <= 64


async def test_idle_connections_make_room_for_another_pod():
    limits = Limits(max_pods=2, reserved_pods=0)
    async with Rig(limits=limits) as rig:
        one, two, three = [await rig.pod(hello, ready=False) for _ in range(3)]
        client = await rig.connect()
        for pod in (one, two, three):
            rig.upstream.pods = [pod.address]
            client.get()
            assert (await client.response())[0] == 200


async def test_few_connections_are_opened_at_a_time():
    async with Rig(limits=Limits(connects_per_pod=3)) as rig:
        pod = await rig.pod(hello, ready=False)
        clients = [await rig.connect() for _ in range(40)]
        for client in clients:
            client.get()
        await rig.held(40)
        rig.upstream.release(pod.address)
        assert len(rig.handler.pool._attempts) == 3
        for client in clients:
            assert (await client.response())[0] == 200


async def test_the_shares_of_a_closed_port_are_given_back(rig):
    shares = rig.path.quotas.clients
    aside = [rig.path.handler(MemoryUpstream(), PortProtocol.HTTP) for _ in range(10)]
    before = shares.free
    handler = rig.path.handler(MemoryUpstream(UpstreamAddress("127.0.0.1", 1)), PortProtocol.HTTP)
    assert shares.free < before
    handler.close()
    assert shares.free == before
    for other in aside:
        other.close()


async def test_a_connection_counts_before_its_transport_is_there(rig):
    # A listener closes handlers that have none, and must not close that of one that is being accepted.
    before = rig.handler.connections
    protocol = rig.handler()
    assert rig.handler.connections == before + 1
    client, server = socket.socketpair()
    transport, _ = await asyncio.get_running_loop().create_connection(lambda: protocol, sock=server)
    assert rig.handler.connections == before + 1
    client.close()
    await eventually(lambda: rig.handler.connections == before)
    transport.close()


async def test_the_ports_of_a_service_share_what_it_may_have():
    async with Rig(limits=Limits(max_clients=12, reserved_clients=3)) as rig:
        await rig.pod(hello)
        ports = [
            rig.path.handler(MemoryUpstream(*rig.upstream.pods), PortProtocol.HTTP, owner="web")
            for _ in range(3)
        ]
        assert len({handler.clients for handler in ports}) == 1
        assert rig.path.quotas.clients.free == 12 - 2 * 3
        for number, handler in enumerate(ports):
            client = await rig.connect(await rig.listen(handler))
            client.get(f"/{number}")
            assert (await client.response())[0] == 200
        assert ports[0].clients.used == 3
        for handler in ports:
            handler.close()
        await eventually(lambda: rig.path.quotas.clients.free == 12 - 3)


async def test_in_a_flood_refused_connections_are_not_lingered_for():
    async with Rig(limits=Limits(max_clients=1, max_refusals=2)) as rig:
        first = await rig.connect()
        await eventually(lambda: rig.statistics.connections == 1)
        others = [await rig.connect() for _ in range(10)]
        await eventually(lambda: rig.statistics.refused == 10)
        assert rig.path.refusals.waiting <= 2
        for client in others:
            assert (await client.response())[0] == 503
        for client in others:
            await client.aclose()
        await eventually(lambda: rig.path.refusals.waiting == 0)
        await rig.pod(hello)
        first.get()
        assert (await first.response())[0] == 200


def test_limits_follow_the_descriptors_of_the_process():
    limits = Limits.for_descriptors(20_000)
    assert limits.max_clients > 10_000
    assert limits.max_clients + limits.max_pods <= 20_000 - 100
