"""Host values on the shared port."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasti.resolver.ports.shared_port import HostRules
from elasti.resolver.projections import ServiceKey

RULES = HostRules(cluster_domain="cluster.local")
WEB = ServiceKey("shop", "web")
LABEL = st.from_regex(r"[a-z]([a-z0-9-]{0,20}[a-z0-9])?", fullmatch=True)


@pytest.mark.parametrize(
    "value",
    [
        "web.shop", "web.shop:80", "web.shop.svc", "web.shop.svc:8080", "WEB.Shop.svc",
        "web.shop.svc.cluster.local", "web.shop.svc.cluster.local.", "web.shop.svc.cluster.local:80/*",
        "http://web.shop.svc.cluster.local", "https://web.shop/path", " web.shop ",
    ],
)  # fmt: skip
def test_a_services_dns_name_is_the_service(value):
    assert RULES.service_of(value, {WEB}) == WEB


@pytest.mark.parametrize(
    "value",
    [
        "", "web", "example.com", "web.shop.example.com", "a.web.shop.svc.cluster.local", "web.shop.pod",
        "10.1.2.3", "10.1.2.3:80", "[::1]", "[fd00::1]:80", "fd00::1", "web.shop.svc.other.domain",
        "web.shop.svc.cluster.local.evil.com", "evil.com/web.shop", "evil.com#web.shop", "web..shop",
        "-web.shop", "web.shop:port", "web.shop:123456", "ftp://web.shop", "web.shop svc", "web.shop\nx",
        "http://http://web.shop", "web@web.shop", "x" * 600 + ".shop",
    ],
)  # fmt: skip
def test_anything_else_names_no_service(value):
    assert RULES.service_of(value, {WEB, ServiceKey("3", "2")}) is None


def test_a_name_that_reads_well_needs_an_elasti_service():
    assert RULES.service_of("web.shop.svc", set()) is None
    assert RULES.service_of("web.shop.svc", {WEB}) == WEB
    assert RULES.service_of("web.shop.svc", set()) is None


def test_the_cluster_domain_is_configurable_and_taken_literally():
    rules = HostRules(cluster_domain="k8s.corp")
    assert rules.service_of("web.shop.svc.k8s.corp", {WEB}) == WEB
    assert rules.service_of("web.shop.svc.k8sxcorp", {WEB}) is None
    assert rules.service_of("web.shop.svc.cluster.local", {WEB}) is None


def test_what_is_remembered_is_bounded():
    rules = HostRules(cluster_domain="cluster.local")
    for number in range(10_000):
        rules.service_of(f"web{number}.shop", set())
    assert rules._read.cache_info().currsize <= 4096


@given(service=LABEL, namespace=LABEL, tail=st.sampled_from(["", ".svc", ".svc.cluster.local"]))
def test_every_service_name_is_found(service, namespace, tail):
    key = ServiceKey(namespace, service)
    assert RULES.service_of(f"{service}.{namespace}{tail}:8080", {key}) == key


@given(st.text(max_size=60))
def test_no_text_finds_a_service_that_it_does_not_name(text):
    found = RULES.service_of(text, {WEB})
    assert found is None or ("web.shop" in text.lower())
