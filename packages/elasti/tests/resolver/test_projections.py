"""Pods from slices."""

from __future__ import annotations

import msgspec
from tests.resolver.cluster import endpoint

from elasti.resolver.projections import ListedEndpoint, PodName, SliceView, endpoints_of
from elasti.resolver.proxy.upstream.interface import UpstreamAddress


def piece(*endpoints, ports=(("http", 8080),), namespace="shop"):
    found = {
        "metadata": {"name": "s", "namespace": namespace},
        "endpoints": list(endpoints),
        "ports": [{"name": name, "port": port} for name, port in ports],
    }
    return msgspec.convert(found, SliceView)


def test_pods_are_listed_by_port_ready_or_not():
    found = endpoints_of(
        [
            piece(
                endpoint("10.0.0.1", ready=True),
                endpoint("10.0.0.2", pod="p"),
                ports=(("a", 1), ("b", 2)),
            )
        ]
    )
    assert found["a"] == {
        UpstreamAddress("10.0.0.1", 1): ListedEndpoint(
            True, PodName("shop", "at-10.0.0.1", "uid-at-10.0.0.1")
        ),
        UpstreamAddress("10.0.0.2", 1): ListedEndpoint(False, PodName("shop", "p", "uid-p")),
    }
    assert set(found["b"]) == {UpstreamAddress("10.0.0.1", 2), UpstreamAddress("10.0.0.2", 2)}


def test_terminating_pods_are_never_listed_though_they_are_ready():
    assert endpoints_of([piece(endpoint("10.0.0.1", ready=True, terminating=True))]) == {"http": {}}


def test_silence_is_not_ready():
    found = endpoints_of([piece(endpoint("10.0.0.1") | {"conditions": {}})])
    assert found["http"][UpstreamAddress("10.0.0.1", 8080)].ready is False


def test_an_address_in_two_slices_is_ready_if_one_says_so():
    for order in (1, -1):
        pieces = [piece(endpoint("10.0.0.1")), piece(endpoint("10.0.0.1", ready=True))][::order]
        assert endpoints_of(pieces)["http"][UpstreamAddress("10.0.0.1", 8080)].ready


def test_a_null_port_name_is_the_unnamed_port():
    assert set(endpoints_of([piece(endpoint("10.0.0.1"), ports=((None, 80), ("x", None)))])) == {""}


def test_what_names_no_pod_of_its_own_namespace_is_left_out():
    unnamed = endpoint("10.0.0.1", ready=True)
    del unnamed["targetRef"]
    node = endpoint("10.0.0.2", ready=True)
    node["targetRef"]["kind"] = "Node"
    assert endpoints_of([piece(unnamed, node)]) == {"http": {}}
    assert endpoints_of([piece(endpoint("10.0.0.3", ready=True), namespace="bob")]) == {"http": {}}
