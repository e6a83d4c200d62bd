"""The client as a whole: its life, its options, and what it shares between resources."""

from __future__ import annotations

import asyncio
import logging

import pytest
from tests.client.rest import client_of, config_for, pod
from tests.testing.scripted_answers import reply, silence
from tests.testing.scripted_server import ScriptedServer

from kubeloop.client.client import Client
from kubeloop.client.config.endpoint import Endpoint
from kubeloop.client.errors import ConfigError, RequestTimeout
from kubeloop.client.ratelimit import RateLimit
from kubeloop.client.request import get
from kubeloop.client.wire.dial import api_request_bytes
from kubeloop.client.wire.transport import Timeouts
from kubeloop.objects.gvk import GroupVersionResource

KUBECONFIG = """
apiVersion: v1
kind: Config
current-context: here
clusters: [{{name: c, cluster: {{server: "{url}"}}}}]
users: [{{name: u, user: {{}}}}]
contexts: [{{name: here, context: {{cluster: c, user: u, namespace: team}}}}]
"""


async def test_closing_repeats_and_a_closed_client_says_so():
    async with ScriptedServer() as server:
        server.serve("GET", "/api/v1/nodes/n", reply({"metadata": {"name": "n"}}))
        async with client_of(server) as client:
            await client.resource("v1/nodes").get("n")
        await client.aclose()
        with pytest.raises(RuntimeError, match="inside its `async with` block"):
            await client.resource("v1/nodes").get("n")


async def test_a_client_that_was_never_used_leaves_nothing():
    client = Client(config_for("https://127.0.0.1:1"))
    await client.aclose()
    assert repr(client) == "<Client https://127.0.0.1:1>"


async def test_a_client_is_made_from_a_kubeconfig(tmp_path):
    path = tmp_path / "config"
    async with ScriptedServer() as server:
        path.write_text(KUBECONFIG.format(url=server.url))
        server.serve("GET", "/api/v1/namespaces/team/pods/web-0", reply(pod()))
        async with Client.from_kubeconfig(path) as client:
            assert client.namespace == "team"
            await client.resource("v1/pods", namespace=client.namespace).get("web-0")
    with pytest.raises(ConfigError, match="no-such-file"):
        Client.from_kubeconfig(tmp_path / "no-such-file")


async def test_a_resource_is_named_by_text_or_by_its_parts():
    client = Client(config_for("https://127.0.0.1:1"))
    by_text = client.resource("apps/v1/deployments")
    by_parts = client.resource(GroupVersionResource("apps", "v1", "deployments"))
    assert by_text.gvr == by_parts.gvr
    await client.aclose()


async def test_any_request_can_be_sent_with_the_clients_identity():
    async with ScriptedServer() as server, client_of(server, user_agent="mine/1") as client:
        server.expect("GET", "/openapi/v3", reply({"paths": {}}))
        response = await client.send(get("/openapi/v3"))
        assert response.body == b'{"paths": {}}'
        assert server.requests[0].headers["user-agent"] == "mine/1"


@pytest.mark.virtual_time
async def test_the_clients_timeout_holds_unless_a_call_has_its_own():
    async with ScriptedServer() as server:
        server.serve("GET", "/api/v1/nodes/n", silence)
        async with client_of(server, timeouts=Timeouts(request=30)) as client:
            with pytest.raises(RequestTimeout, match=r"within 30 s"):
                await client.resource("v1/nodes").get("n")
            with pytest.raises(RequestTimeout, match=r"within 10 s"):
                await client.resource("v1/nodes").get("n", timeout=10)


@pytest.mark.virtual_time
async def test_the_rate_is_shared_by_everything_that_a_client_sends():
    limit = RateLimit(qps=1.0, burst=2)
    async with ScriptedServer() as server, client_of(server, rate=limit) as client:
        server.serve("GET", "/api/v1/nodes/n", reply({"metadata": {"name": "n"}}))
        nodes, others = client.resource("v1/nodes"), client.resource("v1/nodes")
        await asyncio.gather(*(part.get("n") for part in (nodes, others) for _ in range(3)))
        assert asyncio.get_running_loop().time() == pytest.approx(4.0, abs=0.1)


async def test_connections_are_shared_by_resources():
    async with ScriptedServer() as server, client_of(server) as client:
        server.serve("GET", "/api/v1/nodes/n", reply({"metadata": {"name": "n"}}))
        for _ in range(3):
            await client.resource("v1/nodes").get("n")
        assert server.accepted == 1


async def test_a_servers_warning_is_logged_once(caplog):
    warned = reply({"metadata": {"name": "n"}}, headers={"Warning": '299 - "v1 is old"'})
    async with ScriptedServer() as server, client_of(server) as client:
        server.serve("GET", "/api/v1/nodes/n", warned)
        with caplog.at_level(logging.WARNING, "kubeloop"):
            for _ in range(3):
                await client.resource("v1/nodes").get("n")
    assert [record.getMessage() for record in caplog.records] == [
        "API server warns about GET /api/v1/nodes/n: v1 is old"
    ]


def test_a_header_may_be_repeated_on_the_wire():
    lines = (("Impersonate-Group", "a"), ("Impersonate-Group", "b"))
    head = api_request_bytes(Endpoint.parse("http://server"), "/api", lines)
    assert head.count(b"\r\nImpersonate-Group: ") == 2
