"""The resolver end to end, with real sockets: hold, wake, probe, release, forward."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import TYPE_CHECKING, Any

import pytest
from tests.otlp_receiver import plain, receiver
from tests.resolver.cluster import FakeCluster, endpoint, fake_operator, pod
from tests.resolver.support import HttpPod, free_port, get, held, worker

from elasti.api.wire import IncomingReply, WakeOutcome, probe_request, read_probe_answer
from elasti.resolver import app
from elasti.resolver.projections import ServiceKey
from elasti.resolver.proxy.limits import Limits
from elasti.resolver.settings import ResolverSettings
from kubeloop.client.errors import Status
from kubeloop.objects.list_watch import ListOptions, Page
from tests.waiting import eventually

if TYPE_CHECKING:
    pass


async def test_a_hundred_held_requests_reach_the_pod_once_each_when_its_probe_passes():
    cluster, pod_process, woken = FakeCluster(), HttpPod(), asyncio.Event()
    number = free_port()
    cluster.elasti_service("web", ("http", number))
    cluster.private_service("web")
    cluster.publish("web", {"http": number})

    def on_wake(request):
        assert (request.namespace, request.svc) == ("shop", "web")
        woken.set()
        return WakeOutcome.SCALING

    async with fake_operator(on_wake) as url, worker(cluster, url) as resolver:
        asking = [asyncio.create_task(get(number)) for _ in range(100)]
        await woken.wait()
        cluster.pods["web-1"] = pod(
            "web-1", {"readinessProbe": {"httpGet": {"path": "/ready", "port": pod_process.port}}}
        )
        cluster.endpoints(
            "web", endpoint("127.0.0.1", pod="web-1"), ports={"http": pod_process.port}
        )
        await eventually(lambda: held(resolver) == 100, every=0.01)
        async with pod_process.answering():
            answers = await asyncio.gather(*asking)
    assert all(answer.startswith(b"HTTP/1.1 200 ") and answer.endswith(b"hi") for answer in answers)
    assert pod_process.requests == 100
    assert cluster.pod_reads == ["web-1"]


async def test_the_ownership_probe_is_answered_on_every_port_without_waking():
    cluster = FakeCluster()
    names = {"http": free_port(), "tcp-db": free_port(), "https": free_port(), "other": free_port()}
    cluster.elasti_service("web", *names.items())

    def on_wake(_):
        raise AssertionError("a probe must not wake")

    async with fake_operator(on_wake) as url, worker(cluster, url) as resolver:
        for port in names.values():
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(probe_request("shop", "web"))
            identity = read_probe_answer(await reader.read())
            writer.close()
            assert identity is not None
            assert (identity.namespace, identity.service) == ("shop", "web")
        report = await resolver.view.activity(ServiceKey("shop", "web"))
        assert report is not None
        assert (report.held, report.last_arrival_age) == (0, None)


async def test_a_server_that_speaks_first_is_heard_through_a_tcp_port():
    async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 hello\r\n")
        await writer.drain()
        writer.close()

    cluster, port = FakeCluster(), free_port()
    cluster.elasti_service("mail", ("tcp-smtp", port))
    cluster.private_service("mail", {"name": "tcp-smtp", "port": 25})
    server = await asyncio.start_server(greet, "127.0.0.1", 0)
    backend = server.sockets[0].getsockname()[1]
    cluster.endpoints("mail", endpoint("127.0.0.1", ready=True), ports={"tcp-smtp": backend})
    async with server, fake_operator(lambda _: WakeOutcome.SCALING) as url, worker(cluster, url):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await asyncio.wait_for(reader.readline(), 5) == b"220 hello\r\n"
        writer.close()


def test_a_worker_divides_all_the_descriptors_that_it_may_have(monkeypatch):
    monkeypatch.setattr(app, "raise_descriptor_limit", lambda: 1024)
    settings = ResolverSettings(operator_url="http://127.0.0.1:1", idle_per_pod=7)
    divided = Limits.for_descriptors(1024)
    assert app._limits(settings) == dataclasses.replace(divided, max_idle_per_pod=7)
    settings = dataclasses.replace(settings, client_connections=100, workers=2)
    assert app._limits(settings).max_per_client == 50


async def test_probe_responses_are_answered_without_waking():
    cluster, port = FakeCluster(), free_port()
    rule = {
        "path": {"type": "Exact", "value": "/healthz"},
        "response": {"status": 200, "body": "zz"},
    }
    cluster.elasti_service("web", ("http", port), probeResponse=[rule])

    def on_wake(_):
        raise AssertionError("a health check must not wake")

    async with fake_operator(on_wake) as url, worker(cluster, url) as resolver:
        assert (await get(port, "/healthz")).endswith(b"zz")
        report = await resolver.view.activity(ServiceKey("shop", "web"))
        assert report is not None
        assert report.last_arrival_age is None


async def test_a_kept_connection_between_two_requests_does_not_count_as_use():
    cluster, process, port = FakeCluster(), HttpPod(), free_port()
    cluster.elasti_service("web", ("http", port))
    cluster.private_service("web")
    cluster.publish("web", {"http": port})
    key = ServiceKey("shop", "web")
    async with (
        fake_operator(lambda _: WakeOutcome.SCALING) as url,
        worker(cluster, url) as resolver,
        process.answering(),
    ):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\nHost: web\r\n\r\n")
        await eventually(lambda: held(resolver) == 1, timeout=30, every=0.005)
        report = await resolver.view.activity(key)
        assert report is not None
        assert report.open == 1
        cluster.endpoints("web", endpoint("127.0.0.1", ready=True), ports={"http": process.port})
        await reader.readuntil(b"hi")
        report = await resolver.view.activity(key)
        writer.close()
        assert report is not None
        # Clients keep connections for minutes; a request on a kept one is held like one on a new one.
        assert report.open == 0


async def test_more_than_the_bound_is_refused_with_a_time_to_come_back():
    cluster, port = FakeCluster(), free_port()
    cluster.elasti_service("web", ("http", port), wake={"maxHeld": 1, "timeoutSeconds": 1})
    async with (
        fake_operator(lambda _: WakeOutcome.SCALING) as url,
        worker(cluster, url) as resolver,
    ):
        first = asyncio.create_task(get(port))
        await eventually(lambda: held(resolver) == 1, every=0.005)
        second = await get(port)
        assert second.startswith(b"HTTP/1.1 503 ")
        assert b"Retry-After" in second
        assert (await first).startswith(b"HTTP/1.1 504 ")


async def test_an_unreachable_operator_gets_the_wake_annotation():
    cluster, port = FakeCluster(), free_port()
    cluster.elasti_service("web", ("http", port), name="my-elasti", wake={"timeoutSeconds": 1})
    async with worker(cluster, f"http://127.0.0.1:{free_port()}"):
        assert (await get(port)).startswith(b"HTTP/1.1 504 ")
    ((name, patch),) = cluster.patches
    assert name == "my-elasti"
    assert "elasti.truefoundry.com/wake-requested-at" in patch["metadata"]["annotations"]


async def test_draining_serves_what_still_comes_and_what_is_held(monkeypatch):
    cluster, port, process = FakeCluster(), free_port(), HttpPod()
    cluster.elasti_service("web", ("http", port))
    cluster.private_service("web")
    cluster.publish("web", {"http": port}, "10.9.9.9")
    async with (
        fake_operator(lambda _: WakeOutcome.SCALING) as url,
        worker(cluster, url, pod_address="10.9.9.9") as resolver,
    ):
        early = asyncio.create_task(get(port))
        await eventually(lambda: held(resolver) == 1, every=0.005)
        assert await resolver.view.readiness() == (True, "ok")
        is_listed, listed_checks = resolver.is_listed, 0

        def counted() -> bool:
            nonlocal listed_checks
            listed_checks += 1
            return is_listed()

        monkeypatch.setattr(resolver, "is_listed", counted)
        leaving = asyncio.create_task(resolver.leave())
        await eventually(lambda: resolver._deps.leaving, every=0.005)
        assert await resolver.view.readiness() == (False, "shutting down")
        # Longer than the settle: a slice still lists it, so it goes on accepting.
        await eventually(lambda: listed_checks > 4, every=0.005)
        late = asyncio.create_task(get(port))
        await eventually(lambda: held(resolver) == 2, every=0.005)
        cluster.unpublish("web")
        await eventually(lambda: not list(resolver.listeners.ports), every=0.005)
        assert not leaving.done()
        async with process.answering():
            cluster.endpoints(
                "web", endpoint("127.0.0.1", ready=True), ports={"http": process.port}
            )
            assert (await early).startswith(b"HTTP/1.1 200 ")
            assert (await late).startswith(b"HTTP/1.1 200 ")
            assert await leaving is True


async def test_metrics_have_bounded_labels():
    cluster, port, process = FakeCluster(), free_port(), HttpPod()
    cluster.elasti_service("web", ("http", port))
    cluster.private_service("web")
    cluster.endpoints("web", endpoint("127.0.0.1", ready=True), ports={"http": process.port})
    async with (
        process.answering(),
        fake_operator(lambda _: WakeOutcome.SCALING) as url,
        worker(cluster, url) as resolver,
    ):
        for path in ("/a?x=1", "/b?y=2"):
            await get(port, path)
        text = (await resolver.view.metrics()).decode()
    # Two requests that differ in all that a client chooses are one series.
    counted = [
        line
        for line in text.splitlines()
        if line.startswith("elasti_resolver_incoming_requests_count{")
    ]
    assert len(counted) == 1
    assert 'namespace="shop",service="web"' in counted[0]
    assert counted[0].endswith("} 2")
    assert "/a" not in text


async def test_a_pod_that_accepts_but_is_not_ready_gets_nothing_until_its_probe_passes():
    cluster, process, port = FakeCluster(), HttpPod(), free_port()
    process.ready = False
    cluster.elasti_service("web", ("http", port))
    cluster.private_service("web")
    probe = {"readinessProbe": {"httpGet": {"path": "/ready", "port": process.port}}}
    cluster.pods["web-1"] = pod("web-1", probe)
    async with (
        process.answering(),
        fake_operator(lambda _: WakeOutcome.SCALING) as url,
        worker(cluster, url),
    ):
        cluster.endpoints("web", endpoint("127.0.0.1", pod="web-1"), ports={"http": process.port})
        asking = asyncio.create_task(get(port))
        await eventually(lambda: process.probes >= 3, every=0.005)
        assert process.requests == 0
        process.ready = True
        assert (await asyncio.wait_for(asking, 5)).startswith(b"HTTP/1.1 200 ")


async def test_a_pod_that_dies_sends_its_connections_to_the_next():
    cluster, dead, alive, port = FakeCluster(), free_port(), HttpPod(), free_port()
    cluster.elasti_service("web", ("http", port))
    cluster.private_service("web")
    # Kubernetes still calls it ready.
    cluster.endpoints("web", endpoint("127.0.0.1", ready=True), ports={"http": dead})
    async with (
        fake_operator(lambda _: WakeOutcome.SCALING) as url,
        worker(cluster, url) as resolver,
    ):
        asking = [asyncio.create_task(get(port)) for _ in range(5)]
        await eventually(lambda: held(resolver) == 5, every=0.005)
        async with alive.answering():
            cluster.endpoints("web", endpoint("127.0.0.1", ready=True), ports={"http": alive.port})
            answers = await asyncio.gather(*asking)
    assert all(answer.startswith(b"HTTP/1.1 200 ") for answer in answers)


@pytest.mark.parametrize("second", [(), ({"name": "metrics", "port": 9090},)])
async def test_a_port_may_be_renamed_while_connections_are_held_and_kept(second):
    cluster, pod_process, number = FakeCluster(), HttpPod(), free_port()
    # A Service with one port needs no name for it, and one with two does.
    before = "" if second else "http"

    def named(name, *more):
        cluster.private_service("web", {"name": name, "port": 80}, *more)
        cluster.elasti_service("web", (name, number))
        cluster.publish("web", {name: number})

    named(before)
    async with (
        fake_operator(lambda _: WakeOutcome.SCALING) as url,
        worker(cluster, url) as resolver,
        pod_process.answering(),
    ):
        reader, kept = await asyncio.open_connection("127.0.0.1", number)
        asking = [asyncio.create_task(get(number)) for _ in range(5)]
        kept.write(b"GET / HTTP/1.1\r\nHost: web\r\n\r\n")
        await eventually(lambda: held(resolver) == 6, every=0.01)
        named("web", *second)
        cluster.endpoints("web", endpoint("127.0.0.1", ready=True), ports={"web": pod_process.port})
        async with asyncio.timeout(30):
            answers = await asyncio.gather(*asking)
            assert all(answer.startswith(b"HTTP/1.1 200 ") for answer in answers)
            await reader.readuntil(b"hi")
            service = resolver.registry.get(ServiceKey("shop", "web"))
            assert service is not None
            named("again", *second)
            ready = endpoint("127.0.0.1", ready=True)
            cluster.endpoints("web", ready, ports={"again": pod_process.port})
            await eventually(lambda: service.numbers.get("again"))
            kept.write(b"GET / HTTP/1.1\r\nHost: web\r\n\r\n")
            await reader.readuntil(b"hi")
        kept.close()
    assert pod_process.requests == 7


async def test_server_that_suddenly_lists_nothing_closes_no_port(monkeypatch):
    cluster, number = FakeCluster(), free_port()
    cluster.elasti_service("web", ("http", number))
    emptied = asyncio.Event()

    async def list_nothing(_options: ListOptions) -> Page[Any]:
        emptied.set()
        return Page([], "1000")

    async with fake_operator(lambda _: WakeOutcome.SCALING) as url, worker(cluster, url):
        monkeypatch.setattr(cluster.objects, "list", list_nothing)
        cluster.objects.send_error(Status(code=410, reason="Expired"))
        await emptied.wait()
        for _ in range(10):
            await asyncio.sleep(0.05)
            reader, writer = await asyncio.open_connection("127.0.0.1", number)
            writer.write(probe_request("shop", "web"))
            assert read_probe_answer(await reader.read()) is not None
            writer.close()


async def test_held_requests_are_traced_under_the_name_that_the_operator_gives():
    cluster, pod_process = FakeCluster(), HttpPod()
    number = free_port()
    cluster.elasti_service("web", ("http", number))
    cluster.private_service("web")
    cluster.publish("web", {"http": number})
    known, asked = "ab" * 16, []

    def on_wake(request):
        asked.append(request.wake_id)
        return IncomingReply(WakeOutcome.SCALING, wake_id=known)

    async def client(*fields: str) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", number)
        head = "\r\n".join(["GET / HTTP/1.1", "Host: web", "Connection: close", *fields])
        writer.write(f"{head}\r\n\r\n".encode())
        try:
            return await reader.read()
        finally:
            writer.transport.abort()

    parent = "4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7"
    async with receiver() as collector, fake_operator(on_wake) as url:
        async with worker(cluster, url, otlp_endpoint=collector.url) as resolver:
            asking = [
                asyncio.create_task(client(f"traceparent: 00-{parent}-01")),
                asyncio.create_task(client(f"traceparent: 00-{parent}-00")),
                asyncio.create_task(client()),
            ]
            await eventually(lambda: held(resolver) == 3, every=0.01)
            await eventually(lambda: bool(asked), every=0.01)
            gone = asyncio.create_task(client(f"traceparent: 00-{parent}-01"))
            await eventually(lambda: held(resolver) == 4, every=0.01)
            gone.cancel()
            await asyncio.gather(gone, return_exceptions=True)
            await eventually(lambda: held(resolver) == 3, every=0.01)
            cluster.pods["web-1"] = pod(
                "web-1",
                {"readinessProbe": {"httpGet": {"path": "/ready", "port": pod_process.port}}},
            )
            cluster.endpoints(
                "web", endpoint("127.0.0.1", pod="web-1"), ports={"http": pod_process.port}
            )
            async with pod_process.answering():
                answers = await asyncio.gather(*asking)
                await client()  # nothing holds it
                text = (await resolver.view.metrics()).decode()
        spans = collector.spans
    assert all(answer.startswith(b"HTTP/1.1 200 ") for answer in answers)
    assert 'elasti_spans_total{outcome="dropped"} 0' in text
    assert [len(wake_id) for wake_id in asked] == [32]
    served = [one for one in spans if plain(one["attributes"])["elasti.outcome"] == "served"]
    assert len(served) == 2
    assert {link["traceId"] for one in spans for link in one["links"]} == {known}
    assert sorted(one["parentSpanId"] for one in served) == ["", parent[-16:]]
    assert [plain(one["attributes"])["elasti.outcome"] for one in spans if one not in served] == [
        "client_gone"
    ]
    for one in served:
        took = (int(one["endTimeUnixNano"]) - int(one["startTimeUnixNano"])) / 1e9
        assert 0 < took < 30
