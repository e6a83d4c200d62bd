"""Every connection to the API server notices a peer that is gone without a word."""

from __future__ import annotations

from tests.client.connections import connections_to, seconds_to_notice
from tests.testing.scripted_answers import reply
from tests.testing.scripted_server import ScriptedServer

from kubeloop.client import request as requests
from kubeloop.client.auth.identity import AuthContext
from kubeloop.client.config.endpoint import Endpoint
from kubeloop.client.wire.streams import StreamRequest, open_watch
from kubeloop.client.wire.transport import HttpTransport
from kubeloop.objects.codec import codec_for

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
