"""Every connection to the API server notices a peer that is gone without a word."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from tests.client.connections import connections_to, seconds_to_notice
from tests.client.rest import config_for, pod, pod_list
from tests.testing.scripted_answers import reply
from tests.testing.scripted_server import ScriptedServer

from kubeloop.aio.tasks import finish
from kubeloop.client import Client
from kubeloop.client import request as requests
from kubeloop.client.auth.identity import AuthContext
from kubeloop.client.config.endpoint import Endpoint
from kubeloop.client.wire.streams import StreamRequest, open_watch
from kubeloop.client.wire.transport import HttpTransport
from kubeloop.informer import SharedInformerFactory
from kubeloop.informer.reflector.source import ReflectorOptions
from kubeloop.objects.codec import codec_for
from tests.waiting import eventually

PODS = "/api/v1/pods"


async def test_a_request_and_a_watch_notice_silence_within_45_seconds():
    async with ScriptedServer() as server:
        transport = HttpTransport(Endpoint.parse(server.url))
        server.serve("GET", f"{PODS}/a", reply({}))
        await transport.send(
            requests.get(f"{PODS}/a"), AuthContext(authorization={}, ssl_context=None), timeout=30
        )
        assert [*map(seconds_to_notice, connections_to(server.port))] == [(30, 5, 3, 45)]

        server.expect_watch(PODS)
        stream = await open_watch(
            StreamRequest(
                endpoint=Endpoint.parse(server.url),
                ssl_context=None,
                headers=(),
                target=f"{PODS}?watch=true",
                connect_timeout=30.0,
            ),
            codec_for(dict),
            idle_timeout=30.0,
        )
        assert [*map(seconds_to_notice, connections_to(server.port))] == [(30, 5, 3, 45)] * 2
        await stream.close()
        await transport.aclose()


class FreezingRelay:
    """Passes connections on; frozen, those that are open take every byte, acknowledge it, and say nothing."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._tasks: list[asyncio.Task[None]] = []
        self._frozen: set[asyncio.StreamWriter] = set()
        self._open: set[asyncio.StreamWriter] = set()

    def freeze(self) -> None:
        self._frozen |= self._open

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[str]:
        async with await asyncio.start_server(self._accept, "127.0.0.1", 0) as server:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            await finish(self._tasks)
            for writer in self._open:
                writer.close()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", self._to)
        self._open |= {writer, back}
        self._tasks += [
            asyncio.create_task(self._pass(source, target))
            for source, target in ((reader, back), (there, writer))
        ]

    async def _pass(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        while data := await source.read(65536):
            if target not in self._frozen:
                target.write(data)


async def test_a_watch_behind_a_frozen_relay_is_begun_again():
    async with ScriptedServer() as server:
        relay = FreezingRelay(server.port)
        server.expect("GET", PODS, reply(pod_list(version="5")))
        first = server.expect_watch(PODS, query={"resourceVersion": "5"})
        second = server.expect_watch(PODS, query={"resourceVersion": "6"})
        options = ReflectorOptions(watch_list=False, bookmark_silence=0.5)
        async with relay.running() as url, Client(config_for(url)) as client:
            factory = SharedInformerFactory(client, options=options)
            informer = factory.informer("v1/pods")
            async with factory.running():
                await first.event("BOOKMARK", pod("", version="6"))
                await first.event("ADDED", pod("b", version="6"))
                await eventually(lambda: informer.lister.find("default", "b") is not None)
                relay.freeze()
                await first.event("ADDED", pod("a", version="7"))
                await second.event("ADDED", pod("a", version="7"))
                await eventually(lambda: informer.lister.find("default", "a") is not None)
        assert server.accepted >= 3
