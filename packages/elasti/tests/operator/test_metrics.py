"""Metrics: KubeElasti's names and labels to the letter, each of them moving, none of them staying."""

from __future__ import annotations

import math

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families
from tests.controllers.support import eventually
from tests.operator.rig import FakePrometheus, Rig

from devkube.apiserver.faults import InjectedFault
from elasti.api.states import State
from elasti.api.types import ElastiServiceSpec, ScaleTargetRef
from elasti.operator.metrics import OperatorMetrics
from kubeloop.controller.reconcile import Request
from kubeloop.metrics.text import OwnedSeries
from kubeloop.objects.patches import MergePatch

KUBEELASTIS = {
    "elasti_operator_reconcile": ("histogram", {"crd_name", "error"}),
    "elasti_operator_CRD_finalizer_counter": ("counter", {"crd_name", "error"}),
    "elasti_operator_CRD_update_counter": ("counter", {"crd_name", "mode", "error"}),
    "elasti_operator_mode": ("gauge", {"crd_name"}),
    "elasti_operator_informer_count": ("gauge", {"informer_name"}),
    "elasti_operator_informer_counter": ("counter", {"crd_name", "action", "error"}),
    "elasti_operator_informer_handler_counter": ("counter", {"crd_name", "key", "error"}),
    "elasti_operator_scale_counter": (
        "counter",
        {"service_name", "namespace", "target", "error"},
    ),
}


def read(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Every sample, as Prometheus reads it."""
    return {
        (_written(sample.name, text), frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def _written(name: str, text: str) -> str:
    """The name as it stands in the text: this parser, unlike Prometheus, completes counters'."""
    return name if f"{name}{{" in text else name.removesuffix("_total")


def value(text: str, name: str, **labels: str) -> float:
    """The sum of the samples of a name that carry these labels."""
    return sum(
        number
        for (sample, pairs), number in read(text).items()
        if sample == name and labels.items() <= dict(pairs).items()
    )


def moved(metrics: OperatorMetrics, request: Request) -> None:
    """Let everything happen once."""
    metrics.reconciled(request, 0.01, None)
    metrics.finalized(request, None)
    metrics.state(request, State.PROXY)
    metrics.follows(request, "add")
    metrics.handled(request, "target")
    ref = ScaleTargetRef("apps/v1", "Deployment", "web")
    metrics.scaled(request, ElastiServiceSpec(scale_target_ref=ref, service="web"), None)
    metrics.wake_answered("scaling")
    metrics.observe_watches(lambda: {"v1/services": 1}, lambda: {"v1/services": 2})


def test_names_types_and_labels_are_kubeelastis():
    metrics = OperatorMetrics()
    moved(metrics, Request("shop", "web"))
    text = metrics.render().decode()
    for name, (kind, labels) in KUBEELASTIS.items():
        assert f"# TYPE {name} {kind}\n" in text
        lines = [line for line in text.splitlines() if line.startswith((f"{name}{{", f"{name}_"))]
        assert lines, name
        samples = [sample for sample in read("\n".join(lines) + "\n") if sample[0]]
        for _, pairs in samples:
            assert {label for label, _ in pairs} - {"le"} == labels, name


def test_what_is_gone_leaves_nothing_but_its_end():
    metrics = OperatorMetrics()
    moved(metrics, Request("shop", "web"))
    moved(metrics, Request("shop", "other"))
    metrics.forget(Request("shop", "web"))
    left = [line for line in metrics.render().decode().splitlines() if "shop/web" in line]
    assert left == ['elasti_operator_CRD_finalizer_counter{crd_name="shop/web",error="success"} 1']
    assert value(metrics.render().decode(), "elasti_operator_mode", crd_name="shop/other") == 1


def test_ends_that_are_long_ago_are_forgotten_too():
    metrics = OperatorMetrics()
    for number in range(1000):
        request = Request("shop", f"web-{number}")
        metrics.finalized(request, None)
        metrics.forget(request)
    text = metrics.render().decode()
    assert text.count("elasti_operator_CRD_finalizer_counter{") == 256
    assert "web-999" in text
    assert "web-700" not in text


def test_an_error_is_named_by_its_class_and_never_by_its_text():
    metrics = OperatorMetrics()
    metrics.reconciled(Request("shop", "web"), 0.1, RuntimeError("token=secret"))
    text = metrics.render().decode()
    assert 'error="RuntimeError"' in text
    assert "secret" not in text


@given(
    st.dictionaries(
        st.tuples(st.text(max_size=8), st.text(max_size=8)),
        st.floats(allow_nan=False, allow_infinity=False),
        max_size=5,
    )
)
def test_any_label_is_read_back_as_it_was(values):
    series = OwnedSeries("gauge", "a_metric", "About.", ["one", "two"])
    for labels, number in values.items():
        series.put("owner", *labels, value=number)
    text = "".join(series.pieces())
    found = {
        (sample.labels["one"], sample.labels["two"]): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert found == values


@given(st.lists(st.floats(0.0, 20.0), max_size=30))
def test_a_histogram_counts_what_is_at_most_its_bounds(values):
    bounds = (0.5, 2.0, 10.0)
    histogram = OwnedSeries("histogram", "h", "About.", ["who"], bounds)
    for number in values:
        histogram.observe("owner", "me", value=number)
    text = "".join(histogram.pieces())
    for bound, word in zip((*bounds, math.inf), ("0.5", "2", "10", "+Inf"), strict=True):
        expected = sum(number <= bound for number in values)
        assert value(text, "h_bucket", le=word) == expected
    assert value(text, "h_count") == len(values)
    assert value(text, "h_sum") == pytest.approx(sum(values))


async def _metrics(operator) -> str:
    url = f"http://127.0.0.1:{operator.server.port}/metrics"
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        return await response.text()


async def test_each_of_them_moves_in_the_life_of_an_elastiservice(
    rig: Rig, prometheus: FakePrometheus
):
    rig.hurry()
    await rig.web(triggers=[prometheus.trigger()])
    name = f"{rig.namespace}/web"

    async def shows(metric: str, **labels: str) -> None:
        await shows_more(metric, 1, **labels)

    async def shows_more(metric: str, least: int, **labels: str) -> None:
        async def enough() -> bool:
            return value(await _metrics(operator), metric, **labels) >= least

        await eventually(enough)

    async with rig.operator() as operator:
        await rig.becomes("Proxy")
        own = {"crd_name": name, "error": "success"}
        await shows("elasti_operator_reconcile_count", **own)
        await shows("elasti_operator_mode", crd_name=name)
        await shows("elasti_operator_CRD_update_counter", mode="proxy", **own)
        await shows_more("elasti_operator_informer_count", 5)
        await shows("elasti_operator_informer_counter", action="add", **own)
        await shows("elasti_operator_informer_handler_counter", key="target", **own)
        await shows("elasti_operator_informer_handler_counter", key="slices", **own)
        scaled = {"service_name": "web", "namespace": rig.namespace, "target": "Deployment-web"}
        await shows("elasti_operator_scale_counter", error="success", **scaled)
        # The library's own, under the names of client-go and controller-runtime.
        await shows("workqueue_adds_total")
        await shows(
            "controller_runtime_reconcile_total", controller="elastiservice", result="requeue_after"
        )
        await shows_more("reflector_watches_total", 5)
        await shows_more("reflector_list_duration_seconds_count", 5)
        prometheus.value = 9.0
        await rig.wake(operator, "web")
        await rig.becomes("Serve")
        await shows_more("elasti_operator_scale_counter", 2, error="success", **scaled)
        await shows("elasti_operator_wake_requests_total", outcome="scaling")
        await shows("elasti_operator_CRD_update_counter", mode="serve", **own)
        await rig.service("other")
        await rig.cluster.services.patch("web", _labelled("changed"))
        await shows("elasti_operator_informer_handler_counter", key="service", **own)
        await rig.elastiservices.delete("web")
        await shows("elasti_operator_CRD_finalizer_counter", **own)

        async def forgotten() -> bool:
            left = [line for line in (await _metrics(operator)).splitlines() if name in line]
            return all("CRD_finalizer_counter" in line for line in left)

        await eventually(forgotten)
        text = await _metrics(operator)
        assert value(text, "elasti_operator_scale_counter", **scaled) == 0


async def test_a_failed_write_of_the_scale_is_counted_by_its_class(rig: Rig):
    await rig.web(replicas=0)
    async with rig.operator() as operator:
        await rig.becomes("Proxy")
        path = f"/apis/apps/v1/namespaces/{rig.namespace}/deployments/web/scale"
        rig.cluster.faults.add(InjectedFault(code=500, path=path))
        await rig.wake(operator, "web")
        rig.cluster.faults.clear()
        text = await _metrics(operator)
        assert value(text, "elasti_operator_scale_counter", error="InternalError") >= 1


def _labelled(text: str) -> MergePatch:
    return MergePatch({"metadata": {"labels": {"note": text}}})
