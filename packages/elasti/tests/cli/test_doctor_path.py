"""`elasti doctor --path`: the ways to a Service, what an answer means, and policies of clients."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import closing

import pytest
from tests.operator.values import WEB

from elasti.api.wire import PROBE_PATH, ProbeIdentity, probe_answer
from elasti.cli.doctor.elastiservices import judge_egress
from elasti.cli.doctor.findings import FindingLevel
from elasti.cli.doctor.path import Way, _ask, judge, ways_of_ingress, ways_of_route
from kubeloop.objects.meta import JsonObject

KEY = ProbeIdentity("shop", "web")
DIRECT, PROXIED = Way("Service web", "10.0.0.1", 80), Way("Ingress", "1.2.3.4", 80, "a.example")
POD = b"HTTP/1.1 404 Not Found\r\n\r\n"
OK, HINT, PROBLEM, UNCHECKED = (
    FindingLevel.OK,
    FindingLevel.HINT,
    FindingLevel.PROBLEM,
    FindingLevel.UNCHECKED,
)


@pytest.mark.parametrize(
    ("way", "answer", "asleep", "inside", "level", "words"),
    [
        (DIRECT, probe_answer(KEY), True, False, OK, "the resolver answered"),
        (PROXIED, probe_answer(KEY), False, False, OK, "the resolver answered"),
        (DIRECT, probe_answer(ProbeIdentity("shop", "api")), True, True, PROBLEM, "something else"),
        (DIRECT, POD, True, True, PROBLEM, "404 Not Found"),
        (DIRECT, POD, False, True, HINT, "a pod answered"),
        (DIRECT, b"\xff\x00garbage", False, True, HINT, "a pod answered"),
        (DIRECT, TimeoutError("timed out"), True, False, UNCHECKED, "inside the cluster"),
        (DIRECT, OSError("no route to host"), False, False, UNCHECKED, "inside the cluster"),
        (DIRECT, TimeoutError("timed out"), True, True, PROBLEM, "nothing answered"),
        (DIRECT, ConnectionRefusedError("refused"), True, False, PROBLEM, "nothing answered"),
        (PROXIED, TimeoutError("timed out"), False, False, PROBLEM, "nothing answered"),
    ],
)
def test_which_hop_answered(
    way: Way,
    answer: bytes | OSError,
    asleep: bool,
    inside: bool,
    level: FindingLevel,
    words: str,
):
    found = judge(way, answer, KEY, asleep=asleep, inside=inside)
    assert found.level is level
    assert words in found.message
    assert found.remedy or level is OK or not asleep


def ingress(**spec: object) -> JsonObject:
    at = [{"ip": "1.2.3.4"}, {"hostname": "lb.example"}]
    return {
        "metadata": {"name": "front"},
        "spec": spec,
        "status": {"loadBalancer": {"ingress": at}},
    }


def rule(service: str, path: str = "/", host: str = "a.example", **more: object) -> JsonObject:
    backend = {"service": {"name": service}}
    return {"host": host, "http": {"paths": [{"path": path, "backend": backend, **more}]}}


def test_an_ingress_leads_by_host_and_path_at_each_address():
    rules = [rule("web", "/shop"), rule("api"), rule("web", "/one", pathType="Exact")]
    ways = list(ways_of_ingress(ingress(rules=rules), "web"))
    assert [(way.address, way.port, way.host, way.path, way.tls) for way in ways] == [
        ("1.2.3.4", 80, "a.example", "/shop", False),
        ("lb.example", 80, "a.example", "/shop", False),
    ]


def test_an_ingress_with_a_certificate_is_asked_by_tls():
    found = ingress(rules=[rule("web")], tls=[{"hosts": ["a.example"]}])
    assert {(way.port, way.tls) for way in ways_of_ingress(found, "web")} == {(443, True)}


@pytest.mark.parametrize(
    "found",
    [
        ingress(),
        ingress(rules=[{"host": "a.example"}]),
        ingress(defaultBackend={"resource": {"kind": "Bucket"}}),
        {"metadata": {"name": "front"}, "spec": {"rules": [rule("web")]}},
    ],
)
def test_an_ingress_that_leads_nowhere_is_no_way(found: JsonObject):
    assert list(ways_of_ingress(found, "web")) == []


def test_a_default_backend_is_a_way_without_a_host():
    found = ingress(defaultBackend={"service": {"name": "web"}})
    assert [way.host for way in ways_of_ingress(found, "web")] == ["1.2.3.4", "lb.example"]


def test_a_route_leads_by_the_listener_that_it_names():
    listeners = [
        {"name": "http", "port": 80, "protocol": "HTTP"},
        {"name": "https", "port": 8443, "protocol": "HTTPS", "tls": {}, "hostname": "*.example"},
    ]
    gateway = {
        "metadata": {"name": "eg"},
        "spec": {"listeners": listeners},
        "status": {"addresses": [{"value": "1.2.3.4"}]},
    }
    match = {"path": {"type": "PathPrefix", "value": "/shop"}}
    route = {"spec": {"rules": [{"matches": [match], "backendRefs": [{"name": "web"}]}]}}
    both = list(ways_of_route(route, gateway, {"name": "eg"}, "web"))
    assert [(way.port, way.host, way.path, way.tls) for way in both] == [
        (80, "1.2.3.4", "/shop", False),
        (8443, "*.example", "/shop", True),
    ]
    named = ways_of_route(route, gateway, {"name": "eg", "sectionName": "https"}, "web")
    assert [way.port for way in named] == [8443]
    assert list(ways_of_route(route, gateway, {"name": "eg"}, "api")) == []
    assert list(ways_of_route(route, {**gateway, "status": {}}, {"name": "eg"}, "web")) == []


@pytest.fixture
def asked() -> Iterator[tuple[int, list[bytes]]]:
    """A server that notes one request, answers as a resolver and keeps the connection open."""
    requests: list[bytes] = []
    with closing(socket.create_server(("127.0.0.1", 0))) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                requests.append(connection.recv(4096))
                connection.sendall(probe_answer(KEY))

        thread = threading.Thread(target=serve)
        thread.start()
        yield server.getsockname()[1], requests
        thread.join()


@pytest.mark.parametrize(
    ("path", "host", "line"),
    [
        ("", "", f"GET {PROBE_PATH} HTTP/1.1\r\nHost: elasti\r\n"),
        ("/", "a.example", f"GET {PROBE_PATH} HTTP/1.1\r\nHost: a.example\r\n"),
        (
            "/shop(/|$)(.*)",
            "*.example",
            f"GET /shop{PROBE_PATH} HTTP/1.1\r\nHost: elasti-doctor.example\r\n",
        ),
    ],
)
def test_the_probe_is_what_a_proxy_routes(
    asked: tuple[int, list[bytes]], path: str, host: str, line: str
):
    port, requests = asked
    answer = _ask(Way("it", "127.0.0.1", port, host, path), KEY)
    assert isinstance(answer, bytes)
    assert judge(DIRECT, answer, KEY, asleep=True, inside=True).level is OK
    assert requests[0].startswith(line.encode())
    assert b"X-Elasti-Service: shop/web\r\n" in requests[0]


TO_WEB = {"to": [{"podSelector": {"matchLabels": {"app": "web"}}}]}
TO_ALL_OF_ELASTI: JsonObject = {
    "to": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "elasti"}}}]
}
RANGE = {"ports": [{"port": 20000, "endPort": 29999}]}


@pytest.mark.parametrize(
    ("egress", "is_named"),
    [
        ([TO_WEB], True),
        ([TO_WEB | {"ports": [{"port": 8080}]}], True),
        ([TO_WEB, TO_ALL_OF_ELASTI], False),
        ([TO_WEB, TO_ALL_OF_ELASTI | RANGE], False),
        ([TO_WEB, TO_ALL_OF_ELASTI | {"ports": [{"port": 8080}]}], True),
        ([{"to": [{"podSelector": {}}]}], True),
        ([{"to": [{"podSelector": {"matchLabels": {"app": "db"}}}]}], False),  # no client of it
        ([{}], False),
        ([{"to": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]}], False),
        ([], False),
    ],
)
def test_policies_of_clients_that_leave_the_resolver_out(egress: list[JsonObject], is_named: bool):
    policy = {"metadata": {"namespace": "shop", "name": "front"}, "spec": {"egress": egress}}
    found = list(judge_egress([policy], WEB, ("elasti", {})))
    assert bool(found) is is_named
    for one in found:
        assert (one.level, one.topic) == (FindingLevel.WARNING, "NetworkPolicy shop/front")
        assert "20000-29999" in one.remedy
