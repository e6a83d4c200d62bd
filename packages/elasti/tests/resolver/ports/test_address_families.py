"""Both families of addresses: listeners and pods on IPv6, and one socket for both."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import TYPE_CHECKING, cast

import pytest
from tests.resolver.cluster import FakeCluster, endpoint, fake_operator, pod
from tests.resolver.support import free_port, held

from elasti.api.wire import WakeOutcome
from elasti.resolver.app import Worker
from elasti.resolver.proxy.limits import Limits
from elasti.resolver.settings import ResolverSettings
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from kubeloop.client import Client


def has_ipv6() -> bool:
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET6) as sock:
        sock.bind(("::1", 0))
        return True
    return False


pytestmark = pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")


@contextlib.asynccontextmanager
async def listening(cluster: FakeCluster, host: str | None) -> AsyncIterator[Worker]:
    async with fake_operator(lambda _: WakeOutcome.SCALING) as url:
        settings = ResolverSettings(operator_url=url, host=host, shared_port=free_port())
        made = Worker(cast("Client", cluster), settings, limits=Limits())
        async with made.running():
            yield made


@contextlib.asynccontextmanager
async def ipv6_pod(seen: list[bytes]) -> AsyncIterator[int]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, EOFError):
            seen.append(await reader.readuntil(b"\r\n\r\n"))
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nhi")
        writer.close()

    server = await asyncio.start_server(serve, "::1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


async def get(host: str, port: int) -> bytes:
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(b"GET /x HTTP/1.1\r\nHost: web\r\nConnection: close\r\n\r\n")
    try:
        return await reader.read()
    finally:
        writer.close()


@pytest.mark.parametrize("host", ["::1", None])
async def test_a_client_and_a_pod_of_ipv6_are_held_probed_and_joined(host):
    cluster, port = FakeCluster(), free_port()
    seen: list[bytes] = []
    cluster.elasti_service("web", ("http", port))
    cluster.private_service("web")
    async with listening(cluster, host) as resolver, ipv6_pod(seen) as pod_port:
        probe = {"httpGet": {"path": "/ready", "port": pod_port}}
        cluster.pods["web-1"] = pod("web-1", {"readinessProbe": probe}, address="::1")
        asking = asyncio.create_task(get("::1", port))
        await eventually(lambda: held(resolver) == 1, timeout=30, every=0.005)
        cluster.endpoints("web", endpoint("::1", pod="web-1"), ports={"http": pod_port})
        assert (await asking).startswith(b"HTTP/1.1 200 ")
        probed, asked = (next(head for head in seen if word in head) for word in (b"/ready", b"/x"))
        assert b"Host: [::1]:%d\r\n" % pod_port in probed
        assert b"X-Forwarded-For: ::1\r\n" in asked
        assert b'Forwarded: for="[::1]"' in asked
        if host is None:
            # The same socket takes IPv4, and shows such clients as what they are.
            assert (await get("127.0.0.1", port)).startswith(b"HTTP/1.1 200 ")
            assert b"X-Forwarded-For: 127.0.0.1\r\n" in seen[-1]
        else:
            with pytest.raises(OSError, match=r"refused|failed"):
                await get("127.0.0.1", port)
