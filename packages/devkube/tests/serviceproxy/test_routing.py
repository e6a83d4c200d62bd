from __future__ import annotations

from typing import Any

import msgspec
import pytest

from devkube.serviceproxy.proxy import Backend, Frontend, backends, frontends
from kubeloop.objects.core import EndpointSlice, Service


def service(**spec: Any) -> Service:
    ports = [{"port": 80, "name": "http"}]
    body = {"clusterIP": "127.1.0.1", "ports": ports, **spec}
    return msgspec.convert(
        {"metadata": {"name": "web", "namespace": "shop"}, "spec": body}, Service
    )


def endpoint(address: str, **conditions: bool) -> dict[str, Any]:
    return {"addresses": [address], "conditions": conditions}


def piece(
    *endpoints: dict[str, Any], port: int = 8080, name: str = "http", **fields: Any
) -> EndpointSlice:
    meta = {"name": "web-1", "namespace": "shop", "labels": {"kubernetes.io/service-name": "web"}}
    ports = [{"name": name, "port": port}]
    body = {
        "metadata": meta,
        "addressType": "IPv4",
        "ports": ports,
        "endpoints": list(endpoints),
        **fields,
    }
    return msgspec.convert(body, EndpointSlice)


def routes(*slices: EndpointSlice) -> list[Backend]:
    return backends(service().tcp_ports[0], slices)


def test_ready_endpoints_of_all_slices_are_used_each_with_its_own_port():
    ours = piece(endpoint("127.2.0.9", ready=True), port=20001)
    pods = piece(endpoint("127.2.0.1", ready=True), endpoint("127.2.0.2", ready=False))
    assert routes(ours, pods) == [Backend("127.2.0.1", 8080), Backend("127.2.0.9", 20001)]


def test_unset_readiness_counts_as_ready():
    assert routes(piece(endpoint("127.2.0.1"))) == [Backend("127.2.0.1", 8080)]


def test_terminating_endpoints_that_serve_are_the_last_resort():
    going = endpoint("127.2.0.1", ready=False, serving=True, terminating=True)
    gone = endpoint("127.2.0.2", ready=False, serving=False, terminating=True)
    assert routes(piece(going, gone)) == [Backend("127.2.0.1", 8080)]
    assert routes(piece(going, endpoint("127.2.0.3", ready=True))) == [Backend("127.2.0.3", 8080)]


def test_an_endpoint_that_is_merely_not_ready_is_not_used():
    assert routes(piece(endpoint("127.2.0.1", ready=False, serving=False))) == []


def test_ports_are_matched_by_name_and_families_by_address():
    assert routes(piece(endpoint("127.2.0.1"), name="other")) == []
    assert routes(piece(endpoint("::1"), addressType="IPv6")) == []


def test_the_same_endpoint_in_two_slices_counts_once():
    assert routes(piece(endpoint("127.2.0.1")), piece(endpoint("127.2.0.1"))) == [
        Backend("127.2.0.1", 8080)
    ]


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({}, [Frontend("127.1.0.1", 80)]),
        ({"clusterIP": "None"}, []),
        ({"type": "ExternalName", "clusterIP": ""}, []),
        ({"ports": [{"port": 53, "protocol": "UDP"}]}, []),
    ],
)
def test_only_cluster_addresses_with_tcp_ports_listen(spec, expected):
    assert [front for front, _ in frontends(service(**spec))] == expected
