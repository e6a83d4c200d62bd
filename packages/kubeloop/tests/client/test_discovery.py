"""Discovery against a scripted server, in both generations and half broken."""

from __future__ import annotations

import pytest
from tests.client import discovery_samples as samples
from tests.client.rest import client_of
from tests.testing.scripted_answers import refuse, reply
from tests.testing.scripted_server import ScriptedServer

from kubeloop.client.discovery import AGGREGATED, ResourceInfo
from kubeloop.client.errors import Forbidden, ProtocolError
from kubeloop.objects.gvk import GroupVersion, GroupVersionKind, GroupVersionResource

PODS = GroupVersionResource("", "v1", "pods")
DEPLOYMENTS = GroupVersionResource("apps", "v1", "deployments")


def found(discovered) -> dict[GroupVersionResource, ResourceInfo]:
    return {info.gvr: info for info in discovered.resources}


@pytest.mark.parametrize("api", ["v2", "v2beta1"])
async def test_aggregated_discovery_takes_two_requests(api):
    core, groups = samples.CORE | {"apiVersion": api}, samples.GROUPS | {"apiVersion": api}
    async with ScriptedServer() as server, client_of(server) as client:
        server.expect("GET", "/api", reply(core))
        server.expect("GET", "/apis", reply(groups))
        discovered = await client.discovery.fetch()
        assert {request.headers["accept"] for request in server.requests} == {AGGREGATED}
    assert found(discovered)[PODS] == ResourceInfo(
        gvr=PODS,
        kind="Pod",
        namespaced=True,
        verbs=frozenset(samples.WRITE),
        short_names=("po",),
        singular="pod",
        categories=("all",),
        subresources=frozenset({"status", "log"}),
    )
    assert not found(discovered)[GroupVersionResource("", "v1", "nodes")].namespaced
    assert discovered.versions["apps"] == ("v1", "v1beta1")
    assert found(discovered)[DEPLOYMENTS].gvk == GroupVersionKind("apps", "v1", "Deployment")


async def test_group_whose_server_is_down_is_reported_and_hides_nothing():
    async with ScriptedServer() as server, client_of(server) as client:
        server.expect("GET", "/api", reply(samples.CORE))
        server.expect("GET", "/apis", reply(samples.GROUPS))
        discovered = await client.discovery.fetch()
    assert list(discovered.failures) == [GroupVersion("metrics.k8s.io", "v1beta1")]
    assert DEPLOYMENTS in found(discovered)


async def test_an_old_server_is_asked_for_every_version():
    async with ScriptedServer() as server, client_of(server) as client:
        server.expect("GET", "/api", reply(samples.LEGACY_ROOT))
        server.expect("GET", "/apis", reply(samples.LEGACY_GROUPS))
        server.expect("GET", "/api/v1", reply(samples.LEGACY_CORE))
        server.expect("GET", "/apis/apps/v1", reply(samples.LEGACY_APPS))
        server.expect("GET", "/apis/apps/v1beta1", reply(samples.LEGACY_APPS))
        server.expect("GET", "/apis/metrics.k8s.io/v1beta1", refuse(503, "ServiceUnavailable"))
        discovered = await client.discovery.fetch()
    pods = found(discovered)[PODS]
    assert (pods.kind, pods.namespaced, pods.singular) == ("Pod", True, "pod")
    assert pods.subresources == {"status", "log"}
    assert found(discovered)[GroupVersionResource("", "v1", "nodes")].singular == "node"
    assert found(discovered)[DEPLOYMENTS].subresources == {"scale"}
    assert discovered.versions["apps"] == ("v1", "v1beta1")
    (failed,) = discovered.failures.items()
    assert failed == (GroupVersion("metrics.k8s.io", "v1beta1"), "scripted ServiceUnavailable")


async def test_a_server_that_has_only_groups_is_enough():
    async with ScriptedServer() as server, client_of(server) as client:
        server.expect("GET", "/api", refuse(404, "NotFound"))
        server.expect("GET", "/apis", reply(samples.GROUPS))
        assert DEPLOYMENTS in found(await client.discovery.fetch())


async def test_a_server_that_shows_nothing_is_an_error():
    async with ScriptedServer() as server, client_of(server) as client:
        server.expect("GET", "/api", refuse(403, "Forbidden", "no discovery for you"))
        server.expect("GET", "/apis", refuse(403, "Forbidden"))
        with pytest.raises(Forbidden, match="no discovery for you"):
            await client.discovery.fetch()


@pytest.mark.parametrize("body", [b"<html>", b'{"kind": "Pod"}', b"[]", b"{"])
async def test_anything_but_a_discovery_document_is_a_protocol_error(body):
    async with ScriptedServer() as server, client_of(server) as client:
        server.expect("GET", "/api", reply(body=body))
        with pytest.raises(ProtocolError, match="/api answered HTTP 200"):
            await client.discovery.fetch()


async def test_the_server_version_is_returned():
    async with ScriptedServer() as server, client_of(server) as client:
        server.expect("GET", "/version", reply({"major": "1", "gitVersion": "v1.36.4"}))
        assert await client.server_version() == "v1.36.4"
