"""Every rule of what counts as serving, with the whole worker, real sockets and real probes."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from tests.certs import make_authority
from tests.resolver.cluster import FakeCluster, endpoint, fake_operator, pod
from tests.resolver.support import free_port, get, held, worker
from tests.resolver.traffic import served

from elasti.api.wire import WakeOutcome
from elasti.resolver.projections import ServiceKey
from elasti.resolver.readiness.checks import NetworkChecks
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from elasti.resolver.app import Worker
    from elasti.resolver.proxy.upstream.interface import UpstreamAddress
    from elasti.resolver.readiness.checks import Reachability
    from elasti.resolver.readiness.plan import PlannedProbe


class ProbedPod:
    """A pod with any number of ports; each path answers with the status that the test gave it."""

    def __init__(self) -> None:
        self.port = free_port()
        self.statuses: dict[str, int] = {}
        self.asked: Counter[str] = Counter()

    @contextlib.asynccontextmanager
    async def listening(
        self, port: int = 0, tls: ssl.SSLContext | None = None
    ) -> AsyncIterator[None]:
        async with served(self._talk, port or self.port, tls=tls):
            yield

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                path = (await reader.readuntil(b"\r\n\r\n")).split(b" ")[1].decode()
                self.asked[path] += 1
                status = self.statuses.get(path, 200)
                writer.write(b"HTTP/1.1 %d X\r\nContent-Length: 2\r\n\r\nhi" % status)
        finally:
            writer.transport.abort()


class CountedChecks(NetworkChecks):
    """Checks that are counted."""

    made = 0

    async def connect(self, address: UpstreamAddress, *, timeout: float) -> Reachability:
        result = await super().connect(address, timeout=timeout)
        self.made += 1
        return result

    async def ask(self, host: str, question: PlannedProbe) -> bool:
        result = await super().ask(host, question)
        self.made += 1
        return result


class WakingService:
    """One sleeping Service, a client that waits for it, and a pod that comes up."""

    def __init__(
        self, cluster: FakeCluster, process: ProbedPod, resolver: Worker, port: int
    ) -> None:
        self.cluster, self.process, self.resolver = cluster, process, resolver
        self.checks = resolver._deps.checks = CountedChecks()
        self.asking = asyncio.create_task(get(port, "/asked"))
        self._listed: list[bool] = []

    def list(self, *, ready: bool = False, terminating: bool = False) -> None:
        listed = endpoint("127.0.0.1", ready=ready, terminating=terminating, pod="web-1")
        self.cluster.endpoints("web", listed, ports={"http": self.process.port})
        self._listed = [] if terminating else [ready]

    async def until_probed(self, path: str, times: int = 3) -> None:
        before = self.process.asked[path]
        await eventually(
            lambda: self.process.asked[path] >= before + times, timeout=30, every=0.005
        )

    async def not_released(self) -> None:
        """The resolver knows what is listed, has checked it again or never will, and still holds."""
        service = self.resolver.registry.get(ServiceKey("shop", "web"))
        assert service is not None
        port, before = service.port("http"), self.checks.made

        def is_decided() -> bool:
            if [pod.ready for pod in port._endpoints.values()] != self._listed:
                return False
            is_idle = all(task.done() for _, task in port._prober._tasks.values())
            return is_idle or self.checks.made >= before + 3

        await eventually(is_decided, timeout=30, every=0.005)
        assert self.process.asked["/asked"] == 0
        assert held(self.resolver) == 1

    async def released(self) -> None:
        async with asyncio.timeout(30):
            assert (await self.asking).startswith(b"HTTP/1.1 200 ")
        assert self.process.asked["/asked"] == 1


@contextlib.asynccontextmanager
async def waking_service(
    *containers: dict[str, Any], process: ProbedPod, wake: str = "Auto", **spec: Any
) -> AsyncIterator[WakingService]:
    cluster, port = FakeCluster(), free_port()
    cluster.elasti_service("web", ("http", port), wake={"probe": wake})
    cluster.private_service("web")
    cluster.publish("web", {"http": port})
    cluster.pods["web-1"] = pod("web-1", *containers, **spec)
    async with (
        fake_operator(lambda _: WakeOutcome.SCALING) as url,
        worker(cluster, url) as resolver,
    ):
        made = WakingService(cluster, process, resolver, port)
        await eventually(lambda: held(resolver) == 1, timeout=30, every=0.005)
        made.list()
        yield made
        await made.released()


def http_probe(path: str, port: int, **more: Any) -> dict[str, Any]:
    return {"httpGet": {"path": path, "port": port, **more}}


async def test_a_pod_without_probes_is_served_when_its_port_accepts():
    process = ProbedPod()
    async with waking_service({"name": "a"}, process=process) as made:
        await made.not_released()
        async with process.listening():
            await made.released()
            assert set(process.asked) == {"/asked"}


async def test_a_readiness_probe_must_pass():
    process = ProbedPod()
    process.statuses["/ready"] = 503
    container = {"readinessProbe": http_probe("/ready", process.port)}
    async with process.listening(), waking_service(container, process=process) as made:
        await made.until_probed("/ready")
        await made.not_released()
        process.statuses["/ready"] = 204
        await made.released()


async def test_a_startup_probe_must_pass_before_the_readiness_probe_is_even_asked():
    process = ProbedPod()
    process.statuses["/started"] = 500
    container = {
        "startupProbe": http_probe("/started", process.port),
        "readinessProbe": http_probe("/ready", process.port),
    }
    async with process.listening(), waking_service(container, process=process) as made:
        await made.until_probed("/started")
        await made.not_released()
        assert process.asked["/ready"] == 0
        process.statuses["/started"] = 200
        await made.released()
        assert process.asked["/ready"] >= 1


async def test_the_probes_of_all_containers_must_pass():
    process, beside = ProbedPod(), free_port()
    containers = (
        {"name": "web", "readinessProbe": http_probe("/ready", process.port)},
        {"name": "beside", "readinessProbe": {"tcpSocket": {"port": beside}}},
    )
    async with process.listening(), waking_service(*containers, process=process) as made:
        await made.until_probed("/ready", 1)
        await made.not_released()
        async with process.listening(beside):
            await made.released()


async def test_an_exec_probe_is_left_to_kubernetes():
    process = ProbedPod()
    container = {"readinessProbe": {"exec": {"command": ["true"]}}}
    async with process.listening(), waking_service(container, process=process) as made:
        await eventually(lambda: made.cluster.pod_reads == ["web-1"], timeout=30, every=0.005)
        await made.not_released()
        assert not process.asked
        made.list(ready=True)
        await made.released()


async def test_a_readiness_gate_is_left_to_kubernetes():
    process = ProbedPod()
    container = {"readinessProbe": http_probe("/ready", process.port)}
    gates = [{"conditionType": "example.com/load-balancer"}]
    async with (
        process.listening(),
        waking_service(container, process=process, readinessGates=gates) as made,
    ):
        await eventually(lambda: made.cluster.pod_reads == ["web-1"], timeout=30, every=0.005)
        await made.not_released()
        assert not process.asked
        made.list(ready=True)
        await made.released()


async def test_a_terminating_pod_gets_nothing_though_it_accepts_and_passes():
    process = ProbedPod()
    async with waking_service({"name": "a"}, process=process) as made:
        made.list(terminating=True)
        async with process.listening():
            await made.not_released()
            made.list(ready=True, terminating=True)
            await made.not_released()
            # Another pod takes its place, and its address.
            made.list()
            await made.released()


async def test_ready_waits_for_kubernetes_and_asks_nothing():
    process = ProbedPod()
    container = {"readinessProbe": http_probe("/ready", process.port)}
    async with (
        process.listening(),
        waking_service(container, process=process, wake="Ready") as made,
    ):
        await made.not_released()
        assert not process.asked
        # For its address.
        assert made.cluster.pod_reads == ["web-1"]
        made.list(ready=True)
        await made.released()


async def test_tcp_needs_an_accepted_connection_and_nothing_more():
    process = ProbedPod()
    process.statuses["/ready"] = 503
    container = {"readinessProbe": http_probe("/ready", process.port)}
    async with waking_service(container, process=process, wake="TCP") as made:
        await made.not_released()
        async with process.listening():
            await made.released()
        assert set(process.asked) == {"/asked"}
        # For its address.
        assert made.cluster.pod_reads == ["web-1"]


@pytest.mark.parametrize("status", [200, 503])
async def test_an_https_probe_is_asked_over_tls_whatever_the_certificate(
    tmp_path: Path, status: int
):
    certificate, key = make_authority().server("unknown.example").write(tmp_path, "pod")
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate, key)
    process, beside = ProbedPod(), free_port()
    process.statuses["/ready"] = status
    container = {"readinessProbe": http_probe("/ready", beside, scheme="HTTPS")}
    async with (
        process.listening(),
        process.listening(beside, tls),
        waking_service(container, process=process) as made,
    ):
        await made.until_probed("/ready", 1)
        if status == 503:
            await made.not_released()
            process.statuses["/ready"] = 302
        await made.released()
