"""Which addresses triggers may ask."""

from __future__ import annotations

import socket
from typing import Any

import pytest
from aiohttp import web

from elasti.api.triggers.cluster import HttpMetadata
from elasti.api.triggers.destinations import ALLOWED, Destinations, parse_networks
from elasti.api.triggers.prometheus import ADDRESS, SERVERS, PrometheusMetadata, ServerAddress
from elasti.triggers import http, prometheus
from elasti.triggers.reader import ReadContext, ReaderSettings, ScrapeTarget
from kubeloop.aio.clock import SystemClock
from tests.web_server import web_server

IN_CLUSTER = Destinations.of("https://10.96.0.1:443")


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "127.8.8.8",
        "0.0.0.0",
        "::",
        "::1",
        "::ffff:127.0.0.1",
        "64:ff9b::a9fe:a9fe",
        "169.254.169.254",
        "fe80::1%eth0",
        "100.100.100.200",
        "168.63.129.16",
        "fd00:ec2::254",
        "224.0.0.1",
        "not-an-address",
    ],
)
def test_addresses_of_the_host_and_the_cloud_are_denied(address: str):
    assert not IN_CLUSTER.permits(address, 9090)


@pytest.mark.parametrize("address", ["10.0.0.7", "192.168.1.2", "8.8.8.8", "fd00::7"])
def test_other_addresses_are_permitted(address: str):
    assert IN_CLUSTER.permits(address, 9090)


def test_the_api_server_is_denied_by_address_and_name():
    assert not IN_CLUSTER.permits("10.96.0.1", 443)
    for name in ("kubernetes", "KUBERNETES.default.svc.", "kubernetes.default.svc.cluster.local"):
        assert not IN_CLUSTER.permits_name(name, 443)
    assert not Destinations.of("https://api.example:6443").permits_name("api.example", 6443)
    assert IN_CLUSTER.permits_name("prometheus.kubernetes.svc", 9090)


def test_an_installation_may_allow_addresses():
    allowed = parse_networks("169.254.0.0/16, ::1")
    found = Destinations.of("https://10.96.0.1", allowed)
    assert found.permits("169.254.169.254", 80)
    assert found.permits("::1", 80)
    assert not found.permits("127.0.0.1", 80)
    with pytest.raises(ValueError, match=r"write addresses like 127\.0\.0\.1"):
        parse_networks("localhost")


def test_a_cluster_on_loopback_may_ask_loopback_but_not_its_api_server():
    found = Destinations.of("https://127.0.0.1:6443")
    assert found.permits("127.20.0.9", 80)
    assert not found.permits("127.0.0.1", 6443)


def settings_of(**variables: Any) -> ReaderSettings:
    return ReaderSettings(clock=SystemClock(), variables=variables)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_a_name_that_leads_to_loopback_is_not_asked(host: str):
    asked: list[web.Request] = []

    async def answer(request: web.Request) -> web.Response:
        asked.append(request)
        return web.Response()

    async with web_server(web.get("/api/v1/query", answer)) as address:
        where = address.replace("127.0.0.1", host)
        query = PrometheusMetadata(query="q", threshold=1, server_address=where)
        reader = prometheus.make_reader(settings_of())
        reading = await reader.read(query, ReadContext(key="k", cooldown=60))
        await reader.close()
    assert asked == []
    assert "which triggers may not ask" in reading.error
    assert ALLOWED in reading.error


@pytest.mark.parametrize("name", [ADDRESS, SERVERS, ALLOWED])
async def test_what_the_installation_names_is_asked(name: str):
    with socket.create_server(("127.0.0.1", 0)) as closed:
        address = f"http://127.0.0.1:{closed.getsockname()[1]}"
    given = {
        ADDRESS: address,
        SERVERS: (ServerAddress.parse(address),),
        ALLOWED: parse_networks("127.0.0.1"),
    }
    query = PrometheusMetadata(query="q", threshold=1, server_address=address)
    reader = prometheus.make_reader(settings_of(**{name: given[name]}))
    reading = await reader.read(query, ReadContext(key="k", cooldown=60))
    await reader.close()
    assert "Connection refused" in reading.error


async def test_a_pod_of_a_false_endpoint_slice_is_not_asked():
    asks = HttpMetadata(path="/", busy_status=423)
    pod = ScrapeTarget("p", "169.254.169.254", (("", 80),))
    reader = http.make_reader(settings_of())
    reading = await reader.read(asks, ReadContext(key="k", cooldown=60, pods=lambda: [pod]))
    await reader.close()
    assert "which triggers may not ask" in reading.error
