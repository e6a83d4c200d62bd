"""The service proxy on real sockets, fed by fake list/watch sources."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import socket
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from devkube.serviceproxy.proxy import PropagationDelay, ServiceProxy
from kubeloop.aio.tasks import BackgroundTasks
from kubeloop.controller.events.event_types import Reporter
from kubeloop.controller.events.recorder import EventRecorder
from kubeloop.objects.core import EndpointSlice, Service
from kubeloop.objects.gvk import GroupVersionResource
from kubeloop.objects.meta import STRUCT_ACCESS, JsonObject
from kubeloop.objects.patches import Patch
from kubeloop.testing.fake_source import FakeSource
from tests.waiting import eventually

_octet = itertools.count(1)


def fake(kind: type[Any]) -> FakeSource[Any]:
    def represent(obj: JsonObject) -> Any:
        return msgspec.convert(obj, kind)

    return FakeSource(kind=kind.__name__, represent=represent, access=STRUCT_ACCESS)


class Cluster:
    """A client for two kinds, each a fake source; every cluster has a loopback network of its own."""

    def __init__(self) -> None:
        number = next(_octet)
        self.cluster_ip = f"127.90.{number}.1"
        self.pod_ip = f"127.91.{number}.1"
        self.services = fake(Service)
        self.slices = fake(EndpointSlice)

    def resource(
        self, resource: GroupVersionResource, kind: type[Any], *, namespace: str = ""
    ) -> FakeSource[Any]:
        return self.services if kind is Service else self.slices

    def create_service(self, *, port: int = 8080) -> None:
        self.services.create("web", spec={"clusterIP": self.cluster_ip, "ports": [{"port": port}]})

    def publish(self, port: int, *, ready: bool = True, name: str = "web-1") -> None:
        endpoints = [{"addresses": [self.pod_ip], "conditions": {"ready": ready}}]
        fields: dict[str, Any] = {"addressType": "IPv4", "ports": [{"port": port}]}
        fields["endpoints"] = endpoints
        if self.slices.key(name) in self.slices.objects:
            self.slices.update(name, **fields)
        else:
            labels = {"kubernetes.io/service-name": "web"}
            self.slices.put(
                {**self.slices.build(name, **fields), "metadata": self._meta(name, labels)}
            )

    def _meta(self, name: str, labels: dict[str, str]) -> dict[str, Any]:
        return {**self.slices.build(name)["metadata"], "labels": labels}


@contextlib.asynccontextmanager
async def proxying(cluster: Cluster, **options: Any) -> AsyncIterator[ServiceProxy]:
    proxy = ServiceProxy(cluster, **options)
    task = asyncio.create_task(proxy.run())
    try:
        yield proxy
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


@contextlib.asynccontextmanager
async def echo(host: str) -> AsyncIterator[int]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, host, 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


async def connected(
    host: str, port: int = 8080
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect as soon as there is a listener."""
    streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] = await eventually(
        lambda: asyncio.open_connection(host, port),
        f"a listener on {host}:{port}",
        every=0.002,
        ignore=(ConnectionRefusedError,),
    )
    return streams


async def refused(host: str, port: int = 8080) -> None:
    """Wait until there is no listener."""

    async def is_refused() -> bool:
        try:
            _, writer = await asyncio.open_connection(host, port)
        except ConnectionRefusedError:
            return True
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
        return False

    await eventually(is_refused, f"no listener on {host}:{port}", every=0.002)


async def ask(host: str, data: bytes = b"hello") -> bytes:
    reader, writer = await connected(host)
    writer.write(data)
    writer.write_eof()
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    return answer


async def test_a_cluster_address_leads_to_a_ready_endpoint_and_half_close_goes_through():
    cluster = Cluster()
    cluster.create_service()
    async with echo(cluster.pod_ip) as port, proxying(cluster):
        cluster.publish(port)
        assert await ask(cluster.cluster_ip) == b"hello"


async def test_without_an_endpoint_connections_are_refused_until_one_is_ready():
    cluster = Cluster()
    cluster.create_service()
    async with echo(cluster.pod_ip) as port, proxying(cluster):
        cluster.publish(port)
        assert await ask(cluster.cluster_ip) == b"hello"
        cluster.publish(port, ready=False)
        await refused(cluster.cluster_ip)
        cluster.publish(port)
        assert await ask(cluster.cluster_ip) == b"hello"


async def test_open_connections_survive_the_end_of_their_endpoint():
    cluster = Cluster()
    cluster.create_service()
    async with echo(cluster.pod_ip) as port, proxying(cluster):
        cluster.publish(port)
        reader, writer = await connected(cluster.cluster_ip)
        writer.write(b"one")
        assert await reader.readexactly(3) == b"one"
        cluster.publish(port, ready=False)
        await refused(cluster.cluster_ip)
        writer.write(b"two")
        assert await reader.readexactly(3) == b"two"
        writer.close()
        await writer.wait_closed()


async def test_a_deleted_service_stops_listening():
    cluster = Cluster()
    cluster.create_service()
    async with echo(cluster.pod_ip) as port, proxying(cluster):
        cluster.publish(port)
        await ask(cluster.cluster_ip)
        cluster.services.delete("web")
        await refused(cluster.cluster_ip)


async def test_a_dead_endpoint_resets_the_client():
    cluster = Cluster()
    cluster.create_service()
    async with echo(cluster.pod_ip) as port:
        pass
    async with proxying(cluster):
        cluster.publish(port)
        reader, writer = await connected(cluster.cluster_ip)
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read() == b""
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


async def test_megabytes_pass_both_ways_through_a_slow_reader():
    cluster = Cluster()
    cluster.create_service()
    async with echo(cluster.pod_ip) as port, proxying(cluster):
        cluster.publish(port)
        reader, writer = await connected(cluster.cluster_ip)
        data = bytes(range(256)) * 20_000

        async def send() -> None:
            writer.write(data)
            await writer.drain()
            writer.write_eof()

        async with asyncio.TaskGroup() as group:
            group.create_task(send())
            received = bytearray()
            while piece := await reader.read(10_000):
                received += piece
        assert received == data
        writer.close()
        await writer.wait_closed()


class RecordingEventSink:
    """Keeps the events that are written."""

    def __init__(self) -> None:
        self.written: list[JsonObject] = []

    async def create(self, event: JsonObject) -> JsonObject:
        self.written.append(event)
        return event

    async def patch(self, namespace: str, name: str, patch: Patch) -> JsonObject:
        return self.written[-1]


async def complaint(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> JsonObject:
    """Return the event about a Service whose port cannot be bound."""
    sink = RecordingEventSink()
    recorder = EventRecorder(Reporter("service-proxy"), sink)
    async with BackgroundTasks() as tasks, proxying(cluster, recorder=recorder):
        tasks.start(recorder.run(), name="events")
        cluster.publish(1)
        await eventually(lambda: bool(sink.written), every=0.002)
    event = sink.written[0]
    assert event["involvedObject"]["kind"] == "Service"
    assert event["involvedObject"]["name"] == "web"
    assert (event["type"], event["reason"]) == ("Warning", "CannotListen")
    assert event["message"] in caplog.text
    return event


async def test_a_privileged_port_is_reported_with_a_remedy(caplog, monkeypatch):
    async def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError(13, "Permission denied")

    # Some machines let anybody have any port.
    monkeypatch.setattr(asyncio.get_running_loop(), "create_server", refuse)
    cluster = Cluster()
    cluster.create_service(port=80)
    event = await complaint(cluster, caplog)
    assert f"nothing listens on {cluster.cluster_ip}:80" in event["message"]
    assert "give the Service a higher port" in event["message"]


async def test_an_address_in_use_is_reported(caplog):
    cluster = Cluster()
    cluster.create_service()
    with socket.create_server((cluster.cluster_ip, 8080)):
        event = await complaint(cluster, caplog)
    assert f"nothing listens on {cluster.cluster_ip}:8080" in event["message"]
    assert "in use" in event["message"]


@pytest.mark.virtual_time
async def test_delayed_changes_arrive_late_but_in_order():
    propagation = PropagationDelay(delay=3.0, jitter=2.0)
    seen: list[tuple[float, int]] = []
    loop = asyncio.get_running_loop()

    def note(number: int) -> None:
        seen.append((loop.time(), number))

    for number in range(20):
        propagation.pass_on("slice a", functools.partial(note, number))
    await asyncio.sleep(10)
    assert [number for _, number in seen] == list(range(20))
    assert all(3.0 <= at <= 5.0 for at, _ in seen)
    propagation.close()
