"""Through proxies: tunnels for https, absolute URLs for http."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import gc
import ssl
from typing import TYPE_CHECKING, Any

import pytest
from tests.certs import make_authority, server_context
from tests.testing.scripted_answers import WatchScript
from tests.testing.scripted_server import ScriptedServer

from kubeloop.client.config.endpoint import Endpoint
from kubeloop.client.errors import ConnectionLost, ConnectionRefused, ProtocolError, TransportError
from kubeloop.client.wire.streams import StreamRequest, open_watch
from kubeloop.objects.codec import codec_for

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

PODS = "/api/v1/pods"


class TunnelProxy:
    """A proxy that knows CONNECT and nothing else, and answers what it is told."""

    def __init__(self, answer: bytes = b"HTTP/1.1 200 Connection established\r\n\r\n") -> None:
        self._answer = answer
        self._tasks: set[asyncio.Task[Any]] = set()
        self.heads: list[bytes] = []
        self.port = 0

    @contextlib.asynccontextmanager
    async def running(self, tls: ssl.SSLContext | None = None) -> AsyncIterator[TunnelProxy]:
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0, ssl=tls)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._tasks.add(asyncio.create_task(self._serve(reader, writer)))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            try:
                head = await reader.readuntil(b"\r\n\r\n")
                self.heads.append(head)
                writer.write(self._answer)
                if b" 200 " not in self._answer:
                    return
                host, _, port = head.split(b" ")[1].decode().rpartition(":")
                there_reader, there_writer = await asyncio.open_connection(host, int(port))
                try:
                    async with asyncio.TaskGroup() as group:
                        group.create_task(pump(reader, there_writer))
                        group.create_task(pump(there_reader, writer))
                finally:
                    there_writer.close()
            finally:
                writer.close()


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65_536):
        writer.write(data)
        await writer.drain()
    writer.close()


async def watch(
    url: str, proxy: str, context: ssl.SSLContext | None = None, **endpoint: Any
) -> Any:
    return await open_watch(
        StreamRequest(
            endpoint=Endpoint.parse(url, proxy=proxy, **endpoint),
            ssl_context=context,
            headers=(),
            target=f"{PODS}?watch=true",
            connect_timeout=5.0,
        ),
        codec_for(dict),
        idle_timeout=30.0,
    )


async def test_https_goes_through_tunnel_and_is_verified_against_server() -> None:
    authority = make_authority()
    context = ssl.create_default_context(cadata=authority.pem.decode())
    tls = server_context(authority.server("api.internal"))
    async with ScriptedServer(ssl_context=tls) as server, TunnelProxy().running() as proxy:
        script = server.expect_watch(PODS)
        stream = await watch(
            server.url,
            f"http://user:p%40ss@127.0.0.1:{proxy.port}",
            context,
            server_name="api.internal",
        )
        await script.event("ADDED", {"metadata": {"name": "a" * 300_000}})
        [event] = await stream.read()
        await script.end()

        assert len(event.object["metadata"]["name"]) == 300_000
        assert await stream.read() == []
        await stream.close()
        [head] = proxy.heads
        assert head.startswith(f"CONNECT 127.0.0.1:{server.port} HTTP/1.1\r\n".encode())
        credentials = base64.b64encode(b"user:p@ss")
        assert b"Proxy-Authorization: Basic " + credentials in head
        assert "proxy-authorization" not in server.requests[0].headers


async def test_http_is_asked_of_the_proxy_by_absolute_url() -> None:
    async with ScriptedServer() as proxy:
        url = f"http://api.internal:8080{PODS}"
        proxy.expect("GET", url, WatchScript())
        stream = await watch("http://api.internal:8080", f"http://u:p@127.0.0.1:{proxy.port}")
        await stream.close()

        [request] = proxy.requests
        assert request.target == f"{url}?watch=true"
        assert request.headers["host"] == "api.internal:8080"
        assert request.headers["proxy-authorization"].startswith("Basic ")


async def test_a_refused_tunnel_reports_the_proxys_response() -> None:
    answer = b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n"
    async with TunnelProxy(answer).running() as proxy:
        with pytest.raises(TransportError, match="407 Proxy Authentication Required"):
            await watch("https://api.internal", f"http://127.0.0.1:{proxy.port}")
    gc.collect()


@pytest.mark.parametrize(
    ("answer", "kind"), [(b"", ConnectionLost), (b"SSH-2.0-x\r\n", ProtocolError)]
)
async def test_a_proxy_that_does_not_answer_properly(answer: bytes, kind: type) -> None:
    async with TunnelProxy(answer).running() as proxy:
        with pytest.raises(kind):
            await watch("https://api.internal", f"http://127.0.0.1:{proxy.port}")
    gc.collect()


async def test_no_proxy_there_is_connection_refused() -> None:
    async with TunnelProxy().running() as proxy:
        url = f"http://127.0.0.1:{proxy.port}"

    with pytest.raises(ConnectionRefused, match="is the proxy running") as caught:
        await watch("https://api.internal", url)
    assert f"proxy {url}" in str(caught.value)
    assert "https://api.internal" in str(caught.value)


async def test_cancelled_at_any_step_of_tunnel_it_leaves_nothing_behind() -> None:
    authority = make_authority()
    context = ssl.create_default_context(cadata=authority.pem.decode())
    tls = server_context(authority.server())
    async with ScriptedServer(ssl_context=tls) as server, TunnelProxy().running() as proxy:
        server.serve("GET", PODS, WatchScript())
        for steps in range(40):
            opening = asyncio.create_task(
                watch(server.url, f"http://127.0.0.1:{proxy.port}", context)
            )
            for _ in range(steps):
                await asyncio.sleep(0)
            if not opening.cancel():  # a slow machine gets far in few turns
                await (await opening).close()
                continue
            with pytest.raises(asyncio.CancelledError):
                await opening
        # What was left open warns here, and warnings are errors.
        gc.collect()


async def test_a_proxy_may_itself_be_spoken_to_over_tls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = make_authority()
    bundle = tmp_path / "ca.pem"
    bundle.write_bytes(authority.pem)
    monkeypatch.setenv("SSL_CERT_FILE", str(bundle))
    tls = server_context(authority.server())
    async with ScriptedServer(ssl_context=tls) as server, TunnelProxy().running(tls) as proxy:
        script = server.expect_watch(PODS)
        stream = await watch(server.url, f"https://127.0.0.1:{proxy.port}")
        await script.event("ADDED", {"metadata": {"name": "a"}})

        assert len(await stream.read()) == 1
        await stream.close()
    gc.collect()
