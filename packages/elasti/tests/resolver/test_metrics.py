"""What a worker tells: KubeElasti's names, a fixed number of series for a Service, readable by others."""

from __future__ import annotations

import asyncio

from prometheus_client.parser import text_string_to_metric_families
from tests.resolver.cluster import FakeCluster, endpoint, fake_operator
from tests.resolver.support import HttpPod, free_port, get, held, worker

from elasti.api.wire import PROBE_PATH, IncomingRequest, WakeOutcome
from elasti.resolver.app import Worker
from elasti.resolver.projections import ServiceKey
from elasti.resolver.services.service import WakeableService
from elasti.resolver.workers import add_metrics
from kubeloop.metrics.text import Histogram, MetricFamily, exposition
from tests.waiting import eventually

KUBEELASTI = {
    "elasti_resolver_host_extraction_count": {"extractionType", "source", "hostHeader", "error"},
    "elasti_resolver_queued_count": {"source", "namespace"},
    "elasti_resolver_incoming_requests": {
        *("source", "target", "sourceHost", "targetHost", "namespace", "method"),
        *("requestURI", "status", "error"),
    },
    "elasti_resolver_traffic_switch_count": {"source", "enabled"},
    "elasti_resolver_operator_rpc_count": {"error"},
}
_ENDS = (("2xx", "success"), ("5xx", "failed"))


def service(resolver: Worker) -> WakeableService:
    found = resolver.registry.get(ServiceKey("shop", "web"))
    assert found is not None
    return found


def read(text: str) -> dict[str, dict[tuple[str, ...], float]]:
    """Return all samples by name and label values, as another program reads them."""
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            # The reader adds to the names of counters what KubeElasti's do not have.
            name = sample.name.removesuffix("_total")
            found.setdefault(name, {})[tuple(sample.labels.values())] = sample.value
    return found


async def test_requests_are_counted_under_kubeelastis_names():
    cluster, port, process = FakeCluster(), free_port(), HttpPod()
    cluster.elasti_service("web", ("http", port), wake={"timeoutSeconds": 1})
    cluster.private_service("web")
    web = ("shop", "web")

    async def scrape(resolver: Worker) -> dict[str, dict[tuple[str, ...], float]]:
        return read((await resolver.view.metrics()).decode())

    async with (
        fake_operator(lambda _: WakeOutcome.SCALING) as url,
        worker(cluster, url) as resolver,
    ):
        text = (await resolver.view.metrics()).decode()
        assert {name for name in KUBEELASTI if f"# TYPE {name} " in text} == KUBEELASTI.keys()
        labels = {family.name: {*family.labels} for family in resolver.view.own()}
        # What belongs to one Service names it, too.
        assert all(theirs <= labels[name] for name, theirs in KUBEELASTI.items())
        quiet = await scrape(resolver)
        assert web not in quiet.get("elasti_resolver_connections", {})
        cluster.publish("web", {"http": port})
        # The operator's own question is no request.
        assert b'"service":"web"' in await get(port, PROBE_PATH)
        assert (await get(port)).startswith(b"HTTP/1.1 504 ")
        cluster.elasti_service("web", ("http", port), wake={"timeoutSeconds": 600})
        await eventually(
            lambda: service(resolver).wake.timeout_seconds == 600, timeout=30, every=0.01
        )
        left = asyncio.create_task(get(port))
        await eventually(lambda: held(resolver) == 1, timeout=30, every=0.01)
        assert (await scrape(resolver))["elasti_resolver_queued_count"][*web, "web"] == 1
        left.cancel()
        await eventually(lambda: held(resolver) == 0, timeout=30, every=0.01)
        served = asyncio.create_task(get(port))
        await eventually(lambda: held(resolver) == 1, timeout=30, every=0.01)
        async with process.answering():
            cluster.endpoints(
                "web", endpoint("127.0.0.1", ready=True), ports={"http": process.port}
            )
            assert (await served).startswith(b"HTTP/1.1 200 ")
            assert (await get(port)).startswith(b"HTTP/1.1 200 ")
        cluster.unpublish("web")
        await eventually(lambda: service(resolver).published is False, timeout=30, every=0.01)
        after = await scrape(resolver)
    # The library's own: one list and watch for each of the four informers.
    assert len(after["reflector_watches"]) == 4
    assert len(after["reflector_list_duration_seconds_count"]) == 4
    answers = after["elasti_resolver_incoming_requests_count"]
    ok, failed = ((*web, *["web"] * 4, "", "", *end) for end in _ENDS)
    assert answers == {ok: 2, failed: 1}
    assert after["elasti_resolver_incoming_requests_sum"][failed] >= 0.9
    assert after["elasti_resolver_hold_seconds_count"] == {
        (*web, "2xx"): 1,
        (*web, "5xx"): 1,
        (*web, "left"): 1,
    }
    assert after["elasti_resolver_hold_seconds_bucket"][*web, "5xx", "600"] == 1
    assert after["elasti_held_requests"] == {
        (*web, outcome): 1 for outcome in ("served", "timeout", "client_gone")
    }
    switches = after["elasti_resolver_traffic_switch_count"]
    assert switches == {(*web, "web", "enabled"): 1, (*web, "web", "disabled"): 1}
    assert after["elasti_resolver_operator_rpc_count"][("",)] >= 1
    assert after["elasti_resolver_queued_count"][*web, "web"] == 0
    assert after["elasti_cold_start_seconds_count"][("ask",)] >= 1


async def test_a_wake_request_names_its_client_without_query_or_control_characters():
    cluster, port = FakeCluster(), free_port()
    cluster.elasti_service("web", ("http", port), wake={"timeoutSeconds": 1})
    cluster.private_service("web")
    clients: list[str] = []

    def on_wake(request: IncomingRequest) -> WakeOutcome:
        clients.append(request.client)
        return WakeOutcome.SCALING

    async with fake_operator(on_wake) as url, worker(cluster, url):
        cluster.publish("web", {"http": port})
        path = f"/orders/\u00fc{'x' * 200}?token=secret"
        assert (await get(port, path)).startswith(b"HTTP/1.1 504 ")
    assert clients[0] == f"127.0.0.1 GET /orders/%C3%BC{'x' * 90}"


def test_a_histogram_is_written_as_others_read_it():
    histogram = Histogram((0.1, 1.0))
    for seconds in (0.05, 0.1, 0.5, 7.0):
        histogram.add(seconds)
    family = MetricFamily("histogram", "h", "Times.", ["a"])
    family.add(histogram, 'x"y\\z\n')
    text = exposition([family]).decode()
    (found,) = text_string_to_metric_families(text)
    assert found.type == "histogram"
    values = {(s.name, s.labels.get("le")): s.value for s in found.samples}
    assert values == {
        ("h_bucket", "0.1"): 2,
        ("h_bucket", "1"): 3,
        ("h_bucket", "+Inf"): 4,
        ("h_count", None): 4,
        ("h_sum", None): 7.65,
    }
    assert {s.labels["a"] for s in found.samples} == {'x"y\\z\n'}
    doubled = {
        s.name: s.value
        for f in text_string_to_metric_families(add_metrics([text] * 2))
        for s in f.samples
    }
    assert doubled["h_count"] == 8


def test_a_metric_without_labels_has_no_braces():
    family = MetricFamily("gauge", "g", "A number.")
    family.add(2.5)
    assert str(family).endswith("\ng 2.5\n")
