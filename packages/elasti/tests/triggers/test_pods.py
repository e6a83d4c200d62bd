"""Triggers that ask the target's own pods."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import itertools
from collections.abc import AsyncIterator, Sequence

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, generate_latest

from elasti.api.triggers.cluster import PodsMetadata
from elasti.api.triggers.registry import read_metadata
from elasti.triggers.pods import CounterState, PodsReader, rate
from elasti.triggers.reader import ReadContext, ScrapeTarget
from elasti.triggers.responses import PodQueries
from kubeloop.http.client import HttpClient
from kubeloop.metrics.reader import MetricSum, NotExposition, samples
from tests.web_server import web_server

COUNTER = PodsMetadata(metric="requests_total", threshold=1.0)


def asked(pods: Sequence[ScrapeTarget], *, key: str = "k", asleep: bool = False) -> ReadContext:
    return ReadContext(key=key, cooldown=60.0, pods=lambda: pods, asleep=asleep)


GAUGE = PodsMetadata(metric="busy", threshold=1.0)


# The text format


@given(
    st.dictionaries(
        st.sampled_from(["path", "code", "le"]), st.text(max_size=12), min_size=1, max_size=3
    ),
    st.floats(min_value=0, max_value=1e12),
)
def test_what_the_official_client_writes_is_read(labels, value):
    registry = CollectorRegistry()
    names = sorted(labels)
    counter = Counter("requests", "Requests.", names, registry=registry)
    counter.labels(*(labels[name] for name in names)).inc(value)
    text = generate_latest(registry).decode()
    (found,) = samples(text, "requests_total")
    assert found[0] == labels
    assert found[1] == pytest.approx(value)


def metric_sum(text: str, metric: str, labels: dict[str, str]) -> float | None:
    summed = MetricSum(metric, lambda found: labels.items() <= found.items())
    summed.feed(text.encode())
    return summed.result()


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("busy 3", 3.0),
        ("busy 3 1700000000000", 3.0),
        ('busy{a="b"} 3', 3.0),
        ('busy{a="b",} 3', 3.0),
        ('busy{ a = "x" , b="y" } 3', 3.0),
        ('busy{a="}"} 3', 3.0),
        ("busy +Inf", float("inf")),
        ("# TYPE busy gauge", None),
        ("busyness 9", None),
        ("", None),
    ],
)
def test_lines_are_read_or_are_not_ours(line, expected):
    assert metric_sum(line, "busy", {}) == expected


@pytest.mark.parametrize("line", ["busy", "busy abc", "busy{a=b} 1", 'busy{a="b} 1', "busy{} "])
def test_a_broken_line_is_an_error(line):
    with pytest.raises(NotExposition):
        metric_sum(line, "busy", {})


@pytest.mark.parametrize(
    "line",
    [
        "busy" + " " * 1_000_000,
        "busy{" + 'a="",' * 200_000 + " } 1",
        "busy{" + "} " * 500_000,
        "busy 1" + " " * 1_000_000 + "x",
        'busy{a="' + "\\" * 1_000_000,
    ],
    ids=["spaces", "labels", "braces", "tail", "quote"],
)
@pytest.mark.timeout(60)
def test_no_line_costs_more_than_its_length(line):
    # Each would take hours if it were matched again from every place; an operator would stand still.
    with contextlib.suppress(NotExposition):
        list(samples(line, "busy"))


LINES = st.lists(
    st.sampled_from(['busy{a="x"} 1', "busy 2", "# HELP busy", "other 7", 'busy{a="\u00fc"} 4', ""])
)


@given(LINES, st.lists(st.integers(0, 200)))
def test_a_text_says_the_same_in_any_pieces(lines, cuts):
    text = "\n".join(lines).encode()
    summed = MetricSum("busy", lambda _labels: True)
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    for first, last in itertools.pairwise(edges):
        summed.feed(text[first:last])
    assert summed.result() == metric_sum(text.decode(), "busy", {})


def test_a_line_has_an_end():
    summed = MetricSum("busy", lambda _labels: True)
    for _ in range(65):
        summed.feed(b"x" * 1000)
    with pytest.raises(NotExposition, match="longer than 65536 bytes"):
        summed.feed(b"x" * 1000)


def test_only_samples_with_the_labels_are_summed():
    text = 'busy{q="a"} 1\nbusy{q="b"} 2\nbusy{q="a",z="1"} 4\n'
    assert metric_sum(text, "busy", {"q": "a"}) == 5.0
    assert metric_sum(text, "busy", {"q": "c"}) is None


# Rates


def test_a_rate_needs_two_readings():
    assert "first reading" in rate(None, 1.0, {"a": 5.0}).error
    assert rate(None, 1.0, {"a": 5.0}).pending


def test_growth_is_divided_by_the_time():
    assert rate(CounterState(0.0, {"a": 5.0, "b": 1.0}), 10.0, {"a": 25.0, "b": 1.0}).value == 2.0


def test_a_restarted_pod_counts_from_zero():
    assert rate(CounterState(0.0, {"a": 100.0}), 10.0, {"a": 5.0}).value == 0.5


def test_a_new_pod_counts_for_what_it_has():
    assert rate(CounterState(0.0, {"a": 1.0}), 10.0, {"a": 1.0, "b": 20.0}).value == 2.0


def test_a_pod_that_went_leaves_the_rate_unknown():
    assert "went away" in rate(CounterState(0.0, {"a": 1.0, "b": 1.0}), 10.0, {"a": 1.0}).error


@given(
    st.dictionaries(st.sampled_from("abc"), st.floats(0, 1e6), max_size=3),
    st.dictionaries(st.sampled_from("abcd"), st.floats(0, 1e6), max_size=4),
)
def test_a_rate_is_never_negative(before, after):
    reading = rate(CounterState(0.0, before), 1.0, after)
    assert reading.error or reading.value >= 0


# Pods


class FakePod:
    def __init__(self) -> None:
        self.text = "requests_total 0\nbusy 0\n"
        self.status = 200
        self.location = ""
        self.port = 0
        self.packed = False
        self.asked = self.most_asked = 0
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[FakePod]:
        async def metrics(request: web.Request) -> web.Response:
            if self.location and request.path == "/metrics":
                return web.Response(status=301, headers={"Location": self.location})
            self.asked += 1
            self.most_asked = max(self.most_asked, self.asked)
            await asyncio.sleep(0.01)
            await self.may_answer.wait()
            self.asked -= 1
            headers = {"Content-Encoding": "gzip"} if self.packed else {}
            body = gzip.compress(self.text.encode()) if self.packed else self.text.encode()
            return web.Response(body=body, status=self.status, headers=headers)

        async with web_server(
            *(web.get(path, metrics) for path in ("/metrics", "/metrics/"))
        ) as url:
            self.port = int(url.rpartition(":")[2])
            yield self

    @property
    def endpoint(self) -> ScrapeTarget:
        return ScrapeTarget(f"pod-{self.port}", "127.0.0.1", (("http", self.port),))


async def test_gauges_are_summed_over_pods():
    async with FakePod().running() as one, FakePod().running() as two:
        one.text, two.text = "busy 1\n", 'busy{x="y"} 2\nbusy 4\n'
        async with HttpClient() as http:
            reader = PodsReader(PodQueries(http))
            pods = [one.endpoint, two.endpoint]
            assert (await reader.read(GAUGE, asked(pods))).value == 7.0


async def test_a_long_exposition_is_read_to_its_end():
    """Half of it would be a sum that is too small, and a target that sleeps while it is used."""
    async with FakePod().running() as pod, HttpClient() as http:
        pod.text = "busy 1\n" + "other_total 1\n" * 200_000 + "busy 2\n"
        reading = await PodsReader(PodQueries(http)).read(GAUGE, asked([pod.endpoint]))
        assert (reading.value, reading.error) == (3.0, "")


async def test_an_exposition_without_an_end_is_an_error():
    async with FakePod().running() as pod, HttpClient() as http:
        pod.text = "busy 1\n" + "other_total 1\n" * 2_000_000
        reading = await PodsReader(PodQueries(http)).read(GAUGE, asked([pod.endpoint]))
        assert "longer than 16 MiB" in reading.error


async def test_a_counter_is_compared_by_its_rate():
    async with FakePod().running() as pod, HttpClient() as http:
        reader = PodsReader(PodQueries(http))
        assert (await reader.read(COUNTER, asked([pod.endpoint]))).error
        pod.text = "requests_total 10\n"
        await asyncio.sleep(0.01)  # time must pass for a rate
        reading = await reader.read(COUNTER, asked([pod.endpoint]))
        assert reading.usable
        assert reading.value > 10


async def test_after_a_failure_the_rate_is_over_all_the_time_since():
    async with FakePod().running() as pod, HttpClient() as http:
        reader, context = PodsReader(PodQueries(http)), asked([pod.endpoint])
        pod.text = "requests_total 10\n"
        assert (await reader.read(COUNTER, context)).pending
        pod.status = 500
        failed = await reader.read(COUNTER, context)
        assert failed.error
        assert not failed.pending
        pod.status, pod.text = 200, "requests_total 12\n"
        reading = await reader.read(COUNTER, context)
        assert reading.value * reading.span == pytest.approx(2.0)


LABELLED = PodsMetadata(metric="requests_total", threshold=1.0, labels={"handler": "/api"})


@pytest.mark.parametrize(
    "text",
    [
        "# TYPE requests_total counter\n",
        "# TYPE requests counter\n",
        "# HELP requests_total Requests.\n",
        'requests_total{handler="/other"} 7\n',
    ],
)
async def test_a_counter_without_its_series_is_at_zero(text: str):
    async with FakePod().running() as pod, HttpClient() as http:
        reader, context = PodsReader(PodQueries(http)), asked([pod.endpoint])
        pod.text = text
        assert (await reader.read(LABELLED, context)).pending
        assert (await reader.read(LABELLED, context)).value == 0.0
        pod.text += 'requests_total{handler="/api"} 3\n'
        reading = await reader.read(LABELLED, context)
        assert reading.value * reading.span == pytest.approx(3.0), "its first use counts"


async def test_a_counter_that_another_pod_has_shown_is_at_zero():
    async with FakePod().running() as used, FakePod().running() as unused:
        used.text, unused.text = 'requests_total{handler="/api"} 3\n', "other 1\n"
        async with HttpClient() as http:
            reader, context = (
                PodsReader(PodQueries(http)),
                asked([used.endpoint, unused.endpoint]),
            )
            await reader.read(LABELLED, context)
            assert (await reader.read(LABELLED, context)).value == 0.0


async def test_a_counter_that_no_pod_has_shown_is_an_error():
    async with FakePod().running() as pod, HttpClient() as http:
        pod.text = "# TYPE requests_totals counter\nrequests_totals 3\n"
        reader, context = PodsReader(PodQueries(http)), asked([pod.endpoint])
        for _ in range(2):
            reading = await reader.read(LABELLED, context)
            assert not reading.usable
            assert "metric requests_total " in reading.error


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ({}, 7.0),
        ({"handler": "/api"}, 2.0),
        ({"match": {"handler": "/api"}}, 2.0),
        ({"match": {"handler": ["/api", "/healthz"]}}, 3.0),
        ({"notMatch": {"handler": "/healthz"}}, 6.0),
        ({"notMatch": {"handler": ["/healthz", "/api"]}}, 4.0),
        ({"match": {"code": "200"}, "notMatch": {"handler": "/healthz"}}, 4.0),
    ],
)
async def test_labels_say_which_samples_count(labels, expected):
    async with FakePod().running() as pod, HttpClient() as http:
        pod.text = 'busy{handler="/healthz"} 1\nbusy{handler="/api"} 2\nbusy{code="200"} 4\n'
        metadata = read_metadata("pods", {"metric": "busy", "threshold": 1, "labels": labels})
        assert isinstance(metadata, PodsMetadata)
        reading = await PodsReader(PodQueries(http)).read(metadata, asked([pod.endpoint]))
        assert reading.value == expected


@pytest.mark.parametrize(
    "labels",
    [{"match": {"a": "b"}, "handler": "/api"}, {"matches": {"a": "b"}}],
)
def test_labels_of_both_forms_are_refused(labels):
    with pytest.raises(ValueError, match="not both"):
        read_metadata("pods", {"metric": "busy", "threshold": 1, "labels": labels})


@pytest.mark.parametrize(
    ("status", "text", "words"),
    [
        (500, "", " 500"),
        (200, "other 1\n", "metric busy"),
        (200, "busy abc\n", "not a number"),
    ],
)
async def test_one_pod_that_cannot_be_read_is_an_error(status, text, words):
    async with FakePod().running() as good, FakePod().running() as bad:
        bad.status, bad.text = status, text
        async with HttpClient() as http:
            pods = [good.endpoint, bad.endpoint]
            reading = await PodsReader(PodQueries(http)).read(GAUGE, asked(pods))
            assert words in reading.error


async def test_a_pod_may_redirect_only_to_itself():
    async with FakePod().running() as pod, FakePod().running() as other:
        pod.text = "busy 3\n"
        async with HttpClient() as http:
            reader = PodsReader(PodQueries(http))
            pod.location = "/metrics/"
            assert (await reader.read(GAUGE, asked([pod.endpoint]))).value == 3.0
            for location in (f"http://127.0.0.1:{other.port}/metrics", "http://[", "mailto:you"):
                pod.location = location
                reading = await reader.read(GAUGE, asked([pod.endpoint]))
                assert not reading.usable
                assert repr(location) in reading.error
            pod.location = "/metrics"
            reading = await reader.read(GAUGE, asked([pod.endpoint]))
            assert "3 redirects" in reading.error


async def test_a_huge_exposition_leaves_others_their_turns():
    async with FakePod().running() as pod, HttpClient() as http:
        pod.text = 'busy{path="/a/b/c",code="200"} 1\n' * 200_000
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                await asyncio.sleep(0)
                turns += 1

        counting = asyncio.create_task(count())
        reader = PodsReader(PodQueries(http, timeout=60.0, together=60.0))
        reading = await reader.read(GAUGE, asked([pod.endpoint]))
        counting.cancel()
        assert reading.value == 200_000
        assert turns > 50


async def test_what_a_pod_packs_is_not_unpacked():
    async with (
        FakePod().running() as pod,
        HttpClient() as http,
    ):
        pod.packed = True
        reading = await PodsReader(PodQueries(http)).read(GAUGE, asked([pod.endpoint]))
        assert "Content-Encoding 'gzip'" in reading.error


async def test_few_pods_of_one_target_are_asked_at_once_and_not_many_of_all():
    async with FakePod().running() as pod, HttpClient() as http:
        await PodsReader(PodQueries(http)).read(GAUGE, asked([pod.endpoint] * 20))
        assert pod.most_asked == 4
        reader = PodsReader(PodQueries(http, at_once=6))
        readings = (
            reader.read(GAUGE, asked([pod.endpoint] * 10, key=key)) for key in ("a", "b", "c")
        )
        await asyncio.gather(*readings)
        assert pod.most_asked == 6


async def test_many_slow_pods_of_one_target_have_a_time_together():
    async with FakePod().running() as pod, HttpClient() as http:
        pod.may_answer.clear()
        reader = PodsReader(PodQueries(http, timeout=60.0, together=0.2))
        reading = await reader.read(GAUGE, asked([pod.endpoint] * 20))
        assert not reading.usable
        assert "20 pods" in reading.error
        assert "0.2 s" in reading.error
        pod.may_answer.set()
        assert (await reader.read(GAUGE, asked([pod.endpoint]))).value == 0.0


async def test_an_unreachable_pod_is_an_error():
    async with HttpClient() as http:
        pod = ScrapeTarget("p", "127.0.0.1", (("http", 1),))
        reading = await PodsReader(PodQueries(http)).read(GAUGE, asked([pod]))
        assert not reading.usable
        assert "port 1: Connection refused" in reading.error


async def test_no_pods_are_idle_only_if_none_should_run():
    async with HttpClient() as http:
        reader = PodsReader(PodQueries(http))
        assert (await reader.read(GAUGE, asked([], asleep=True))).value == 0.0
        assert (await reader.read(GAUGE, asked([]))).error


def test_a_port_is_found_by_number_name_or_place():
    pod = ScrapeTarget("p", "10.0.0.1", (("http", 80), ("metrics", 9090)))
    assert [pod.port(0), pod.port(""), pod.port("metrics"), pod.port(1234), pod.port("x")] == [
        80,
        80,
        9090,
        1234,
        None,
    ]
