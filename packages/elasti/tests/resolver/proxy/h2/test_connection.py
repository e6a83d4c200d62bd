"""h2c with prior knowledge: real gRPC clients and servers, and frames by hand."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import hpack
import pytest
from tests.resolver.proxy.rig import HOST, PATIENCE, hello

from elasti.resolver.proxy.h2 import frames as h2
from elasti.resolver.proxy.upstream.interface import LocalAnswer, Refusal, UpstreamAddress
from tests.waiting import eventually

# gRPC's own threads live as long as the process.
pytestmark = pytest.mark.allow_leaks("threads")

GRPC_POD = Path(__file__).parent.with_name("grpc_pod.py")


@contextlib.asynccontextmanager
async def grpc_pod():
    """A gRPC server in a process of its own."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, GRPC_POD,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdin is not None
    try:
        yield UpstreamAddress("127.0.0.1", int(await process.stdout.readline())), process
    finally:
        process.stdin.close()
        await process.wait()


@pytest.fixture
async def there(rig):
    """A real client's channel; its calls block, so they are made in threads."""
    options = [
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.keepalive_time_ms", 1000),
        ("grpc.keepalive_timeout_ms", 500),
        ("grpc.http2.max_pings_without_data", 0),
    ]
    channel = grpc.insecure_channel(f"{HOST}:{rig.port}", options=options)
    with ThreadPoolExecutor(8) as threads:
        yield There(channel, threads)
        await asyncio.get_running_loop().run_in_executor(None, channel.close)


class There:
    def __init__(self, channel: grpc.Channel, threads: ThreadPoolExecutor) -> None:
        self.channel, self.threads = channel, threads

    def run(self, call, *arguments, **options):
        return asyncio.get_running_loop().run_in_executor(
            self.threads, lambda: call(*arguments, **options)
        )

    def unary(self, data: bytes, method: str = "/echo/unary", **options):
        return self.run(self.channel.unary_unary(method), data, **options)


@pytest.fixture(params=["at once", "held"])
async def pod(rig, request):
    """A gRPC pod that answers already, or that every client waits for first."""
    async with grpc_pod() as (address, _):
        if request.param == "at once":
            rig.upstream.pods.append(address)
            yield request.param
        else:
            release = asyncio.create_task(release_when_held(rig, address))
            yield request.param
            await release


async def release_when_held(rig, address: UpstreamAddress) -> None:
    await rig.held()
    rig.upstream.release(address)


def numbers(count: int):
    return iter([b"%d" % number for number in range(count)])


async def test_a_unary_call_with_metadata_and_trailers(rig, pod, there):
    call = there.channel.unary_unary("/echo/unary").with_call
    answer, details = await there.run(call, b"hi" * 1000, metadata=(("x-from", "me"),))
    assert answer == b"hi" * 1000
    assert dict(details.trailing_metadata()) == {"x-sum": "42", "x-echo": "me"}
    assert ("x-elasti-cold-start" in dict(details.initial_metadata())) == (pod == "held")
    for _ in range(20):
        again, details = await there.run(call, b"again")
        assert again == b"again"
        assert "x-elasti-cold-start" not in dict(details.initial_metadata())
    assert rig.statistics.requests == rig.statistics.answered(200) == 21
    await eventually(lambda: rig.statistics.active == 0)


async def test_a_status_passes(pod, there):
    with pytest.raises(grpc.RpcError) as caught:
        await there.unary(b"fail")
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert caught.value.details() == "bad: Ä"


async def test_all_kinds_of_streaming(pod, there):
    served = await there.run(lambda: list(there.channel.unary_stream("/echo/server")(b"500")))
    assert served == list(numbers(500))
    joined = await there.run(there.channel.stream_unary("/echo/client"), numbers(500))
    assert joined == b"".join(numbers(500))
    both = await there.run(lambda: list(there.channel.stream_stream("/echo/both")(numbers(500))))
    assert both == list(numbers(500))


async def test_messages_larger_than_any_window(pod, there):
    big = b"x" * 3_000_000
    results = await asyncio.gather(*(there.unary(big) for _ in range(4)))
    assert all(result == big for result in results)


async def test_a_deadline_reaches_the_pod(pod, there):
    with pytest.raises(grpc.RpcError) as caught:
        await there.unary(b"", "/echo/never", timeout=0.5)
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    async with asyncio.timeout(PATIENCE):
        while await there.unary(b"", "/echo/cancelled") != b"1":  # noqa: ASYNC110
            await asyncio.sleep(0.01)


@pytest.mark.slow
async def test_keepalive_pings_are_answered_while_held(rig, there):
    async with grpc_pod() as (address, _):
        call = there.unary(b"hi")
        await rig.held()
        done, _ = await asyncio.wait([call], timeout=3.0)
        assert not done
        rig.upstream.release(address)
        assert await call == b"hi"


async def test_a_deadline_that_passes_while_held_frees_capacity(rig, there):
    async with grpc_pod() as (address, _):
        with pytest.raises(grpc.RpcError) as caught:
            await there.unary(b"", timeout=0.3)
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        await rig.held(0)
        assert rig.statistics.active == 0
        again = there.unary(b"again")
        await rig.held(1)
        rig.upstream.release(address)
        assert await again == b"again"
        # The call that was cancelled was never made, over the same connection.
        assert await there.unary(b"", "/echo/calls") == b"1"
        assert rig.statistics.connections == 1


@pytest.mark.parametrize("refusal", [Refusal.TIMEOUT, Refusal.OVERFLOW])
async def test_a_refused_call_is_unavailable_with_the_reason(rig, refusal, there):
    call = there.unary(b"", wait_for_ready=False)
    await rig.held()
    rig.upstream.detail = ": postgres did not start"
    rig.upstream.refuse_all(refusal)
    with pytest.raises(grpc.RpcError) as caught:
        await call
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert caught.value.details() == f"{refusal.message}: postgres did not start"


async def test_a_client_without_requests_does_not_wake(rig, there):
    ready = grpc.channel_ready_future(there.channel)
    await there.run(ready.result, 5)
    assert rig.upstream.arrivals == 0
    assert rig.upstream.waiting == []


async def test_the_client_goes_elsewhere_when_pods_take_over(rig, there):
    async with grpc_pod() as (address, _):
        rig.upstream.pods.append(address)
        sending: asyncio.Queue[bytes] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        def requests():
            while (data := asyncio.run_coroutine_threadsafe(sending.get(), loop).result()) != b"":
                yield data

        stream = there.channel.stream_stream("/echo/both")(requests())
        for data in (b"1", b"2"):
            sending.put_nowait(data)
            assert await there.run(next, stream) == data
        rig.upstream.stepping_aside = True
        sending.put_nowait(b"3")
        assert await there.run(next, stream) == b"3"
        async with asyncio.timeout(PATIENCE):
            # The client takes a moment to read what follows the answer.
            while rig.statistics.connections < 2:
                assert await there.unary(b"x") == b"x"
        sending.put_nowait(b"4")
        assert await there.run(next, stream) == b"4"
        sending.put_nowait(b"")
        assert await there.run(lambda: list(stream)) == []


async def test_a_pod_that_dies_makes_calls_unavailable(rig, there):
    async with grpc_pod() as (address, process):
        rig.upstream.pods.append(address)
        call = there.unary(b"", "/echo/never")
        await eventually(lambda: rig.statistics.sent > 100)
        process.kill()
        with pytest.raises(grpc.RpcError) as caught:
            await call
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_http_1_and_grpc_share_a_port(rig, there):
    web = await rig.pod(hello)
    client = await rig.connect()
    client.get("/x")
    assert (await client.response())[2] == b"GET /x HTTP/1.1|"
    async with grpc_pod() as (address, _):
        rig.upstream.pods = [address]
        assert await there.unary(b"hi") == b"hi"
    assert len(web.requests) == 1


# by hand


def request_frames(stream: int, path: bytes = b"/", encoder: hpack.Encoder | None = None) -> bytes:
    fields = [(b":method", b"GET"), (b":scheme", b"http"), (b":path", path), (b":authority", b"a")]
    block = (encoder or hpack.Encoder()).encode(fields)
    flags = h2.END_HEADERS | h2.END_STREAM
    return h2.frame(h2.HEADERS, flags=flags, stream=stream, payload=block)


async def read_frame(client) -> tuple[h2.H2Frame, bytes]:
    found = h2.header_at(await client.read(9), 0)
    return found, await client.read(found.length)


async def frames_of(client, count: int) -> list[tuple[int, int, int, bytes]]:
    found = []
    for _ in range(count):
        head, payload = await read_frame(client)
        found.append((head.kind, head.flags, head.stream, payload))
    return found


async def test_the_beginning_is_answered_byte_by_byte(rig):
    client = await rig.connect()
    start = h2.PREFACE + h2.frame(h2.SETTINGS) + h2.frame(h2.PING, payload=b"12345678")
    for byte in start + request_frames(1):
        client.send(bytes((byte,)))
        await client.writer.drain()
    assert await frames_of(client, 3) == [
        (h2.SETTINGS, 0, 0, h2.settings_while_held()[h2.HEADER_SIZE :]),
        (h2.SETTINGS, h2.ACK, 0, b""),
        (h2.PING, h2.ACK, 0, b"12345678"),
    ]
    await rig.held()
    rig.upstream.refuse_all(Refusal.TIMEOUT)
    (kind, flags, stream, block), data, bye = await frames_of(client, 3)
    fields = dict(hpack.Decoder().decode(block, raw=True))
    assert (kind, flags, stream) == (h2.HEADERS, h2.END_HEADERS, 1)
    assert fields[b":status"] == b"504"
    assert fields[b"retry-after"] == b"5"
    assert b"did not wake" in data[3]
    assert bye[0] == h2.GOAWAY
    assert await client.rest() == b""


async def test_each_early_acknowledgement_is_swallowed_once(rig):
    seen = bytearray()
    go = asyncio.Event()

    async def handler(pod, reader, writer):
        writer.write(h2.frame(h2.SETTINGS) + h2.frame(h2.SETTINGS, flags=h2.ACK) * 2)
        writer.write(h2.frame(h2.PING, payload=b"abcdefgh"))
        while data := await reader.read(1000):
            seen.extend(data)
            if seen.endswith(b"the end"):
                go.set()

    pod = await rig.pod(handler, ready=False)
    client = await rig.connect()
    client.send(h2.PREFACE + h2.frame(h2.SETTINGS) + request_frames(1))
    assert len(await frames_of(client, 2)) == 2
    client.send(h2.frame(h2.SETTINGS, flags=h2.ACK))
    await rig.held()
    rig.upstream.release(pod.address)
    # Ours again, the pod's settings, one of its two acknowledgements, and its ping.
    assert [found[:2] for found in await frames_of(client, 4)] == [
        (h2.SETTINGS, 0),
        (h2.SETTINGS, 0),
        (h2.SETTINGS, h2.ACK),
        (h2.PING, 0),
    ]
    client.send(h2.frame(h2.SETTINGS, flags=h2.ACK) * 2)
    client.send(h2.frame(h2.DATA, stream=1, payload=b"the end"))
    async with asyncio.timeout(PATIENCE):
        await go.wait()
    assert bytes(seen) == (
        h2.PREFACE
        + h2.frame(h2.SETTINGS)
        + request_frames(1)
        + h2.frame(h2.SETTINGS, flags=h2.ACK)
        + h2.frame(h2.DATA, stream=1, payload=b"the end")
    )


async def test_a_rule_answers_over_h2_and_other_requests_come_again(rig):
    rig.upstream.rule = lambda asked: (
        LocalAnswer(200, b"fine") if asked.target == b"/healthz" else None
    )
    client = await rig.connect()
    encoder = hpack.Encoder()
    client.send(h2.PREFACE + h2.frame(h2.SETTINGS) + request_frames(1, b"/healthz", encoder))
    found = await frames_of(client, 4)
    assert sorted(frame[0] for frame in found) == [h2.DATA, h2.HEADERS, h2.SETTINGS, h2.SETTINGS]
    assert rig.upstream.arrivals == 0
    client.send(request_frames(3, b"/other", encoder))
    kind, _, _, payload = (await frames_of(client, 1))[0]
    assert (kind, int.from_bytes(payload[:4], "big")) == (h2.GOAWAY, 1)
    assert await client.rest() == b""


@pytest.mark.parametrize(
    "wire",
    [
        b"PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n",
        h2.PREFACE + h2.frame(h2.HEADERS, flags=4, stream=1, payload=b"\xff" * 50),
        h2.PREFACE + b"\xff\xff\xff\x00\x00\x00\x00\x00\x01",
        h2.PREFACE + h2.frame(h2.CONTINUATION, flags=4, stream=1),
        h2.PREFACE + h2.frame(h2.HEADERS, stream=1) + h2.frame(h2.DATA, stream=1),
        h2.PREFACE + h2.frame(h2.HEADERS, flags=0xC, stream=1, payload=b"\xff"),
    ],
)
async def test_what_is_not_h2_ends_the_connection(rig, wire):
    client = await rig.connect()
    client.send(wire)
    assert b"\x07\x00\x00\x00\x00\x00" in await client.rest()
    assert rig.upstream.arrivals == 0
