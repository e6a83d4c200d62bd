"""The shared port: one request a connection, routed by its Host."""

from __future__ import annotations

import asyncio
from typing import Any

import hpack
import pytest
from tests.resolver.cluster import FakeCluster, endpoint, fake_operator
from tests.resolver.proxy.fakes import FakeTransport
from tests.resolver.support import HttpPod, get, held, worker

from elasti.api.wire import PROBE_PATH, WakeOutcome
from elasti.resolver.ports import shared_port
from elasti.resolver.ports.shared_port import SharedConnection, SharedPort
from elasti.resolver.proxy.h2.frames import HEADERS, PREFACE, SETTINGS, frame
from elasti.resolver.proxy.h2.held import HeldFrames
from elasti.resolver.proxy.port_handler import DataPath
from tests.waiting import eventually


async def test_the_shared_port_goes_by_host_and_closes_after_one_request():
    cluster, first, second = FakeCluster(), HttpPod(), HttpPod()
    for name, process in (("web", first), ("api", second)):
        cluster.elasti_service(name)
        cluster.private_service(name)
        cluster.endpoints(name, endpoint("127.0.0.1", ready=True), ports={"http": process.port})
    async with (
        first.answering(),
        second.answering(),
        fake_operator(lambda _: WakeOutcome.SCALING) as url,
        worker(cluster, url) as resolver,
    ):
        port = resolver.shared_port
        assert (await get(port, host="web.shop.svc.cluster.local")).startswith(b"HTTP/1.1 200 ")
        assert (await get(port, host="api.shop:80")).startswith(b"HTTP/1.1 200 ")
        assert (first.requests, second.requests) == (1, 1)
        # Two requests for different Services on one connection: the second is not misdelivered.
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for host in ("web.shop", "api.shop"):
            writer.write(f"GET / HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
        answers = await asyncio.wait_for(reader.read(), 5)
        writer.close()
        assert answers.count(b"HTTP/1.1 200") == 1
        assert (first.requests, second.requests) == (2, 1)


async def test_the_shared_port_closes_after_an_answer_of_ours_too():
    """Else the next request on the connection goes to the first one's Service, whatever its Host."""
    cluster, pod = FakeCluster(), HttpPod()
    rule = {"path": {"type": "Exact", "value": "/healthz"}, "response": {"status": 200}}
    cluster.elasti_service("web", probeResponse=[rule])
    cluster.elasti_service("api")
    for name in ("web", "api"):
        cluster.private_service(name)
        cluster.endpoints(name, endpoint("127.0.0.1", ready=True), ports={"http": pod.port})
    async with (
        pod.answering(),
        fake_operator(lambda _: WakeOutcome.SCALING) as url,
        worker(cluster, url) as resolver,
    ):
        for path in ("/healthz", PROBE_PATH):
            reader, writer = await asyncio.open_connection("127.0.0.1", resolver.shared_port)
            writer.write(f"GET {path} HTTP/1.1\r\nHost: web.shop\r\n\r\n".encode())
            writer.write(b"GET /private HTTP/1.1\r\nHost: api.shop\r\n\r\n")
            answers = await asyncio.wait_for(reader.read(), 5)
            writer.close()
            assert answers.count(b"HTTP/1.1 ") == 1
            assert b"\r\nConnection: close\r\n" in answers
        assert pod.requests == 0


async def test_requests_that_came_before_the_ports_were_known_are_served():
    """As after KubeElasti, whose private Services have no label until the operator adopts them."""
    cluster, process, other = FakeCluster(), HttpPod(), HttpPod()
    cluster.elasti_service("web")
    async with (
        process.answering(),
        other.answering(),
        fake_operator(lambda _: WakeOutcome.SCALING) as url,
        worker(cluster, url) as resolver,
    ):
        asking = [
            asyncio.create_task(get(resolver.shared_port, host=host))
            for host in ("web.shop", "web.shop:81")
        ]
        await eventually(lambda: held(resolver) == 2, timeout=30, every=0.01)
        ports = [{"name": "http", "port": 80}, {"name": "more", "port": 81}]
        cluster.private_service("web", *ports)
        numbers = {"http": process.port, "more": other.port}
        cluster.endpoints("web", endpoint("127.0.0.1", ready=True), ports=numbers)
        answers = await asyncio.wait_for(asyncio.gather(*asking), 30)
    assert all(answer.startswith(b"HTTP/1.1 200 ") for answer in answers)
    assert (process.requests, other.requests) == (1, 1)


async def test_the_shared_port_answers_404_for_unknown_services_without_waking():
    cluster = FakeCluster()
    cluster.elasti_service("web")

    def on_wake(_):
        raise AssertionError("no Service must be woken")

    async with fake_operator(on_wake) as url, worker(cluster, url) as resolver:
        for host in ("example.com", "other.shop", "10.0.0.1", "[::1]:80"):
            assert (await get(resolver.shared_port, host=host)).startswith(b"HTTP/1.1 404 ")
        reader, writer = await asyncio.open_connection("127.0.0.1", resolver.shared_port)
        writer.write(b"nonsense\r\n\r\n")
        assert (await reader.read()).startswith(b"HTTP/1.1 400 ")
        writer.close()
        assert b'hostHeader="",error="failed"} 4\n' in await resolver.view.metrics()


async def test_a_header_may_name_the_service_on_the_shared_port():
    cluster, process = FakeCluster(), HttpPod()
    cluster.elasti_service("web")
    cluster.private_service("web")
    cluster.endpoints("web", endpoint("127.0.0.1", ready=True), ports={"http": process.port})
    async with (
        process.answering(),
        fake_operator(lambda _: WakeOutcome.SCALING) as url,
        worker(cluster, url, header_for_host="X-Envoy-Decorator-Operation") as resolver,
    ):
        reader, writer = await asyncio.open_connection("127.0.0.1", resolver.shared_port)
        writer.write(
            b"GET / HTTP/1.1\r\nHost: shop.example.com\r\n"
            b"X-Envoy-Decorator-Operation: web.shop.svc.cluster.local:80/*\r\n\r\n"
        )
        assert (await reader.read()).startswith(b"HTTP/1.1 200 ")
        writer.close()


async def test_h2_on_the_shared_port_goes_by_authority():
    cluster = FakeCluster()
    rule = {"path": {"value": "/healthz"}, "response": {"status": 200, "body": "zz"}}
    cluster.elasti_service("web", probeResponse=[rule])
    async with (
        fake_operator(lambda _: WakeOutcome.SCALING) as url,
        worker(cluster, url) as resolver,
    ):
        for authority, expected in (("web.shop", b"zz"), ("other.shop", b"HTTP/1.1 404 ")):
            fields = [
                (":method", "GET"), (":scheme", "http"), (":path", "/healthz"), (":authority", authority)
            ]  # fmt: skip
            block = hpack.Encoder().encode(fields)
            reader, writer = await asyncio.open_connection("127.0.0.1", resolver.shared_port)
            writer.write(
                PREFACE + frame(SETTINGS) + frame(HEADERS, flags=5, stream=1, payload=block)
            )
            got = b""
            async with asyncio.timeout(40):
                while expected not in got:
                    piece = await reader.read(4096)
                    assert piece, got
                    got += piece
            writer.close()


class CountedFrames(HeldFrames):
    """Frames that count the bytes they are given."""

    given = 0

    def read(self, data):
        CountedFrames.given += len(data)
        return super().read(data)


@pytest.mark.parametrize("step", [1, 7])
def test_no_byte_is_parsed_twice(monkeypatch, step):
    """Else every byte that drips in costs as much as all before it."""
    parsed = []
    monkeypatch.setattr(shared_port, "HeldFrames", CountedFrames)
    monkeypatch.setattr(shared_port, "parse_request", lambda data: parsed.append(len(data)))
    path = DataPath()
    wire = PREFACE + frame(SETTINGS, flags=1) * 200
    head = b"GET / HTTP/1.1\r\nX: " + b"x" * 2000
    for sent in (wire, head):
        share = path.quotas.clients.share()
        assert share.take()
        nothing: Any = None
        connection = SharedConnection(
            router=SharedPort(path=path, registry=nothing, rules=nothing),
            sweeper=path.sweeper,
            reads=path.buffer,
            share=share,
            memory=path.quotas.memory.share(),
        )
        transport: Any = FakeTransport(connection)
        connection.connection_made(transport)
        for at in range(0, len(sent), step):
            transport.feed(sent[at : at + step])
        transport.lose()
    assert CountedFrames.given == len(wire) - len(PREFACE)
    assert parsed == []
    CountedFrames.given = 0
