"""Bytes that pods receive and send: the arithmetic, and what a kubelet may answer."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import itertools
import random
import ssl
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from aiohttp import web

from devkube.certificates import CertificateAuthority
from elasti.api.triggers.cluster import NETWORK_THRESHOLD, NetworkMetadata
from elasti.api.triggers.registry import read_metadata
from elasti.api.types import ScaleTrigger
from elasti.operator.idleness.decide import Evidence
from elasti.operator.idleness.evaluator import Evaluator, Subject
from elasti.triggers.kubelets import (
    KubeletAccess,
    Kubelets,
    KubeletUnreadable,
    NodeCounters,
    PodCounters,
    read_summary,
)
from elasti.triggers.network import (
    GRPC_PROBE,
    HTTP_PROBE,
    HTTPS_PROBE,
    TCP_PROBE,
    Floor,
    NetworkReader,
    TrafficMeter,
    floor,
    http_probe_size,
)
from elasti.triggers.reader import ReadContext, ReaderSettings, ScrapeTarget, TriggerReading
from kubeloop.aio.clock import SystemClock
from kubeloop.objects.core import Pod, PodStatus
from kubeloop.testing.fake_errors import api_error

# The arithmetic

HOUR = 3600.0
COOLDOWN = 900.0
INTERVAL = 30.0
HTTP = http_probe_size(None)
REQUEST = 1600.0
MESSAGE = 245.0
QUERY = 450.0
DOCS = Path(__file__).parents[4] / "docs" / "guide" / "triggers.md"

# What the guide says: probes (size, period), use (bytes, period), whether it keeps a target awake.
TABLE: tuple[tuple[str, str, list[tuple[float, float]], tuple[float, float], bool], ...] = (
    ("none", "one request of 1.6 kB every 10 minutes", [], (REQUEST, 600), True),
    ("HTTP every 10 s", "one request of 1.6 kB a minute", [(HTTP, 10)], (REQUEST, 60), True),
    (
        "HTTP every 10 s",
        "one request of 1.6 kB every 10 minutes",
        [(HTTP, 10)],
        (REQUEST, 600),
        False,
    ),
    ("HTTP every 10 s", "a WebSocket message every 5 s", [(HTTP, 10)], (MESSAGE, 5), True),
    ("HTTP every second", "a WebSocket message every 5 s", [(HTTP, 1)], (MESSAGE, 5), False),
    ("HTTP every second", "a request of 1.6 kB every 5 s", [(HTTP, 1)], (REQUEST, 5), True),
    ("TCP every 10 s", "a database query every 10 s", [(TCP_PROBE, 10)], (QUERY, 10), True),
    ("TCP every second", "a database query every 10 s", [(TCP_PROBE, 1)], (QUERY, 10), False),
    ("any", "an open connection on which nothing is sent", [(HTTP, 10)], (132, 60), False),
    ("any", "nothing", [(HTTP, 10), (TCP_PROBE, 5)], (0, 60), False),
)


def arrived(size: float, period: float, phase: float, at: float) -> float:
    """Bytes of something that happens every period, from its phase on, until a time."""
    return max(0.0, (at - phase) // period + 1) * size


def counted(at: float, total: int) -> PodCounters:
    return PodCounters(at, total // 2, total - total // 2)


def simulate(
    probes: Sequence[tuple[float, float]], use: tuple[float, float], *, hours: float, seed: int = 1
) -> int:
    """Return how often a target would be parked, read as the poller does with counters of some age."""
    rand = random.Random(seed)
    sources = [(*source, rand.uniform(0, source[1])) for source in (*probes, use)]
    cost, meter, evidence, parks = floor(probes), TrafficMeter(), Evidence(NETWORK_THRESHOLD), 0
    now = 0.0
    while now < hours * HOUR:
        now += rand.uniform(0.9, 1.1) * INTERVAL
        at = now - rand.uniform(5, 15)
        counters = counted(at, int(sum(arrived(*source, at) for source in sources)))
        reading = meter.feed({"a": (counters, cost)}, NETWORK_THRESHOLD)
        evidence = evidence.after(reading, now, stale_after=120)
        if evidence.quiet_for(now, stale_after=120) >= COOLDOWN:
            parks += 1
            meter, evidence = TrafficMeter(), Evidence(NETWORK_THRESHOLD)
    return parks


@pytest.mark.parametrize(("probes", "use", "sizes", "bytes_", "seen"), TABLE)
def test_the_guide_says_which_use_is_seen(probes, use, sizes, bytes_, seen):
    row = f"| {probes} | {use} | {'stays awake' if seen else 'sleeps'} |"
    assert row in DOCS.read_text()
    for seed in range(5):
        assert (simulate(sizes, bytes_, hours=8, seed=seed) == 0) is seen


def test_a_request_a_minute_never_parks_in_a_thousand_hours():
    assert simulate([(HTTP, 10)], (REQUEST, 60), hours=1000) == 0


def steady(arrivals: Callable[[random.Random], float], *, hours: float, seed: int) -> set[float]:
    """Return what a meter calls steady; `arrivals`: the seconds from one use to the next."""
    rand, meter = random.Random(seed), TrafficMeter()
    cost, now, used, following = floor([(HTTP, 10)]), 0.0, 0.0, rand.uniform(0, 10)
    found = set[float]()
    while now < hours * HOUR:
        now += rand.uniform(0.9, 1.1) * INTERVAL
        while following < now:
            used, following = used + CHECK, following + arrivals(rand)
        probes = arrived(HTTP, 10, 3, now)
        reading = meter.feed({"a": (counted(now, int(probes + used)), cost)}, NETWORK_THRESHOLD)
        found.add(reading.steady)
    return found


CHECK = 620.0


@pytest.mark.parametrize("period", [5, 10, 15])
def test_a_check_is_called_steady_with_its_rate_after_two_hours(period: float):
    for seed in range(5):
        assert steady(lambda _rand: period, hours=1.9, seed=seed) == {0.0}
        found = steady(lambda _rand: period, hours=6, seed=seed) - {0.0}
        assert len(found) == 1, "status is not written again and again"
        assert CHECK / period * 0.9 < found.pop() < CHECK / period * 1.1


def test_people_are_not_steady():
    for seed in range(10):
        assert steady(lambda rand: rand.expovariate(1 / 3), hours=24, seed=seed) == {0.0}
        assert steady(lambda rand: rand.expovariate(1 / 10), hours=24, seed=seed) == {0.0}
    heavy = steady(lambda _rand: 1.0, hours=4, seed=1)
    assert heavy == {0.0}, "so much is use, however steady"


def test_an_idle_target_sleeps_whatever_its_probes_and_their_phase():
    for seed, period in itertools.product(range(8), (1, 3, 10, 60)):
        probes = [(HTTP, period), (TCP_PROBE, 2 * period)]
        assert simulate(probes, (0, 1), hours=1, seed=seed) >= 2


def feed(meter: TrafficMeter, at: float, **totals: int) -> TriggerReading:
    pods = {uid: (counted(at, total), Floor(0.0, 0.0)) for uid, total in totals.items()}
    return meter.feed(pods, NETWORK_THRESHOLD)


def test_counters_that_begin_again_count_for_what_they_have():
    meter = TrafficMeter()
    assert feed(meter, 0, a=10_000_000).pending
    assert feed(meter, 30, a=10_000_000) == TriggerReading(0.0, span=30)
    assert feed(meter, 60, a=100).value == 0
    assert feed(meter, 90, a=60_100).value >= NETWORK_THRESHOLD


@pytest.mark.parametrize(
    ("received", "sent", "floor", "seen"),
    [
        (1000, 0, 0.0, False),
        (1100, 0, 0.0, True),
        (200, 4, 0.0, False),
        (10, 200, 0.0, True),
        # A client that sends a kilobyte every ten seconds, and gets acknowledgements only.
        (108, 7, 0.0, True),
        # A TCP probe every ten seconds, then the client beside it.
        (70, 21, 41.2, False),
        (129, 28, 41.2, True),
    ],
)
def test_what_a_bridge_sends_to_all_of_its_pods_is_not_use(received, sent, floor, seen):
    meter = TrafficMeter()
    readings = [
        meter.feed({"a": (PodCounters(at, at * received, at * sent), Floor(floor, 0.0))}, 16.0)
        for at in range(0, 600, 30)
    ]
    assert any(reading.value for reading in readings[1:]) is seen


def test_a_pod_that_solicits_routers_beside_pods_that_start_is_not_in_use():
    # As counted on a node: 70 bytes each time, at intervals that double; others' arrive unanswered.
    solicited = [1 + 4 * (2**n - 1) for n in range(9)]
    meter, noise = TrafficMeter(), random.Random(1)
    received, readings = 0, []
    for at in range(0, 1800, 15):
        received += 70 * noise.randint(0, 60)
        sent = 70 * sum(when <= at for when in solicited)
        readings.append(meter.feed({"a": (PodCounters(at, received, sent), floor([]))}, 16.0))
    # The packets of its first seconds may count once.
    assert not any(reading.value for reading in readings[2:])


def test_a_pod_that_went_took_what_it_knew():
    meter = TrafficMeter()
    feed(meter, 0, a=0, b=0)
    assert feed(meter, 30, a=0).pending
    assert feed(meter, 60, a=0) == TriggerReading(0.0, span=30)


def test_the_same_statistics_twice_show_nothing_new():
    meter = TrafficMeter()
    feed(meter, 0, a=0)
    feed(meter, 30, a=40_000)
    assert feed(meter, 30, a=40_000) == TriggerReading(0.0, span=0)


def test_a_threshold_may_be_left_out():
    assert read_metadata("network", {}).limit() == NETWORK_THRESHOLD
    with pytest.raises(ValueError, match="did you mean 'threshold'"):
        read_metadata("network", {"treshold": 3})


# Kubelets


def summary(**pods: int | None) -> bytes:
    now = dt.datetime.now(dt.UTC).isoformat()
    found = [
        {"podRef": {"name": uid, "uid": uid}, **({} if total is None else _network(now, total))}
        for uid, total in pods.items()
    ]
    return msgspec.json.encode({"node": {"nodeName": "n"}, "pods": found})


def _network(now: str, total: int) -> dict[str, Any]:
    return {
        "network": {
            "time": now,
            "name": "eth0",
            "rxBytes": total // 2,
            "txBytes": total - total // 2,
        }
    }


def pod_object(name: str, node: str, **spec: Any) -> Pod:
    return msgspec.convert(
        {
            "metadata": {"name": name, "uid": name},
            "spec": {"nodeName": node, "containers": [{"name": "c"}], **spec},
            "status": {"hostIP": node, "podIP": "127.0.0.1"},
        },
        Pod,
    )


class Api:
    """The API server, as the reader sees it: pods, and tokens of one account."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self.pods: dict[str, Pod] = {}
        self.asked: list[str] = []
        self.tokens = 0
        self.config = SimpleNamespace(credentials=self)
        self._context = context

    async def ssl_context(self) -> ssl.SSLContext:
        return self._context

    def resource(self, _resource: str, _kind: Any = None, *, namespace: str = "") -> Api:
        del namespace
        return self

    def subresource(self, _name: str) -> Api:
        return self

    async def create(self, name: str, _obj: Any) -> dict[str, Any]:
        assert name == "stats"
        self.tokens += 1
        return {"status": {"token": "stats-token"}}

    async def get(self, name: str, *, namespace: str = "") -> Pod:
        del namespace
        self.asked.append(name)
        if name not in self.pods:
            raise api_error(404)
        return self.pods[name]


class Nodes:
    """Scripted kubelets, each at an address of its own, and a reader of them."""

    def __init__(self, authority: CertificateAuthority, port: int) -> None:
        self.authority = authority
        self.port = port
        self.answers: dict[str, Callable[[], bytes | int]] = {}
        self.requests: list[tuple[str, str]] = []
        self.delays: dict[str, float] = {}
        self.at_once = self.most_at_once = 0

    async def serve(self, request: web.Request) -> web.Response:
        address = request.url.host or ""
        self.requests.append((address, request.headers["Authorization"]))
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        await asyncio.sleep(self.delays.get(address, 0.0))
        self.at_once -= 1
        found = self.answers[address]()
        if isinstance(found, int):
            return web.Response(status=found)
        return web.Response(body=found, content_type="application/json")


@contextlib.asynccontextmanager
async def serving(
    tmp_path: Path, *addresses: str, authority: CertificateAuthority, signer: Any = None
) -> AsyncIterator[Nodes]:
    now = dt.datetime.now(dt.UTC)
    pair = (signer or authority).issue_server(addresses, now=now)
    (tmp_path / "pair.pem").write_bytes(pair.key + pair.certificate)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "pair.pem")
    nodes = Nodes(authority, 0)
    app = web.Application()
    app.router.add_get("/stats/summary", nodes.serve)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        for address in addresses:
            site = web.TCPSite(runner, address, nodes.port, ssl_context=context)
            await site.start()
            nodes.port = nodes.port or site._server.sockets[0].getsockname()[1]  # type: ignore[union-attr]
        yield nodes
    finally:
        await runner.cleanup()


@pytest.fixture(scope="module")
def authority() -> CertificateAuthority:
    return CertificateAuthority.create(now=dt.datetime.now(dt.UTC))


def api_of(authority: CertificateAuthority) -> Api:
    context = ssl.create_default_context(cadata=authority.pem.decode())
    return Api(context)


@contextlib.asynccontextmanager
async def reading(
    api: Api, port: int, *, account: str = "elasti/stats", insecure: bool = False
) -> AsyncIterator[NetworkReader]:
    access = KubeletAccess(api, account, insecure=insecure)  # type: ignore[arg-type]
    reader = NetworkReader(api, Kubelets(access, port=port, timeout=0.4))  # type: ignore[arg-type]
    try:
        yield reader
    finally:
        await reader.close()


def asked(*pods: str, key: str = "k", cooldown: float = 12.0, asleep: bool = False) -> ReadContext:
    found = [ScrapeTarget(name, "127.0.0.1", (), name) for name in pods]
    return ReadContext(
        key=key, cooldown=cooldown, namespace="shop", pods=lambda: found, asleep=asleep
    )


READ = NetworkMetadata()


async def test_two_targets_of_a_node_cost_one_read_with_the_accounts_token(tmp_path, authority):
    api = api_of(authority)
    async with serving(tmp_path, "127.0.0.1", authority=authority) as nodes:
        nodes.answers["127.0.0.1"] = lambda: summary(a=1000, b=2000)
        api.pods = {name: pod_object(name, "127.0.0.1") for name in "ab"}
        async with reading(api, nodes.port) as reader:
            found = await asyncio.gather(
                reader.read(READ, asked("a", key="one")), reader.read(READ, asked("b", key="two"))
            )
            await reader.end_round()
            assert all(one.pending for one in found)
            assert (await reader.read(READ, asked("a", key="one"))).value == 0
    assert nodes.requests == [("127.0.0.1", "Bearer stats-token")]
    assert (api.tokens, sorted(api.asked)) == (1, ["a", "b"])


async def test_a_summary_beyond_every_node_s_size_names_the_node(tmp_path, authority, monkeypatch):
    monkeypatch.setattr("elasti.triggers.kubelets._MAX_BYTES", 1 << 20)
    async with serving(tmp_path, "127.0.0.1", authority=authority) as nodes:
        nodes.answers["127.0.0.1"] = lambda: summary(a=1) + b" " * (1 << 20)
        kubelets = Kubelets(KubeletAccess(api_of(authority), "elasti/stats"), port=nodes.port)  # type: ignore[arg-type]
        with pytest.raises(
            KubeletUnreadable, match=r"127\.0\.0\.1:\d+ answers with more than 1 MiB"
        ):
            await kubelets.counters("127.0.0.1", max_age=60)
        await kubelets.close()


def test_the_counters_of_a_node_are_found_by_the_whole_uid():
    known = read_summary(summary(a=3, ab=5, b=7))
    assert [known.get(uid) and known.get(uid).total for uid in ("a", "ab", "b")] == [3, 5, 7]  # type: ignore[union-attr]
    assert [known.get(uid) for uid in ("", "c", "a\nab")] == [None, None, None]


async def test_few_connections_are_kept_for_many_nodes(tmp_path, authority, monkeypatch):
    monkeypatch.setattr("elasti.triggers.kubelets._MOST_KEPT", 3)
    addresses = [f"127.0.1.{number}" for number in range(1, 9)]
    async with serving(tmp_path, *addresses, authority=authority) as nodes:
        nodes.answers |= dict.fromkeys(addresses, lambda: summary(a=1000))
        kubelets = Kubelets(KubeletAccess(api_of(authority), "elasti/stats"), port=nodes.port)  # type: ignore[arg-type]
        await asyncio.gather(*(kubelets.counters(one, max_age=60) for one in addresses))
        assert sum(map(len, kubelets._http._idle.values())) == 3
        await kubelets.close()


async def test_sixteen_summaries_at_most_are_in_memory(tmp_path, authority):
    api, addresses = api_of(authority), [f"127.0.1.{number}" for number in range(1, 41)]
    async with serving(tmp_path, *addresses, authority=authority) as nodes:
        nodes.answers |= dict.fromkeys(addresses, lambda: summary(a=1000))
        nodes.delays |= dict.fromkeys(addresses, 0.2)
        kubelets = Kubelets(KubeletAccess(api, "elasti/stats"), port=nodes.port, timeout=30)  # type: ignore[arg-type]
        reads = [kubelets.counters(address, max_age=60) for address in addresses]
        assert all(await asyncio.gather(*reads))
        await kubelets.close()
    assert 1 < nodes.most_at_once <= 16


async def test_an_unreachable_node_harms_its_own_pods_only(tmp_path, authority):
    api = api_of(authority)
    async with serving(tmp_path, "127.0.0.1", "127.0.0.2", authority=authority) as nodes:
        nodes.answers = {node: lambda: summary(a=1, b=1) for node in ("127.0.0.1", "127.0.0.2")}
        nodes.delays["127.0.0.2"] = 0.8
        api.pods = {"a": pod_object("a", "127.0.0.1"), "b": pod_object("b", "127.0.0.2")}
        async with reading(api, nodes.port) as reader:
            well, *lost = await asyncio.gather(
                reader.read(READ, asked("a", key="well")),
                *(reader.read(READ, asked("b", key=str(index))) for index in range(3)),
            )
    assert well.pending
    assert not any(one.usable for one in lost)
    assert all(f"127.0.0.2:{nodes.port}" in one.error for one in lost)
    assert len([node for node, _ in nodes.requests if node == "127.0.0.2"]) == 1


BAD: tuple[tuple[Callable[[], bytes | int], str], ...] = (
    (lambda: 403, "get on nodes/stats"),
    (lambda: 401, "get on nodes/stats"),
    (lambda: 404, " 404 at /stats/summary"),
    (lambda: b"<html>", "/stats/summary"),
    (lambda: summary(), "pod a "),
    (lambda: summary(a=1).replace(b"time", b"when"), "pod a "),
    (lambda: summary(a=None), "pod a "),
)


@pytest.mark.parametrize(("answer", "words"), BAD)
async def test_what_a_kubelet_may_answer(tmp_path, authority, answer, words):
    api = api_of(authority)
    api.pods = {"a": pod_object("a", "127.0.0.1")}
    async with serving(tmp_path, "127.0.0.1", authority=authority) as nodes:
        nodes.answers["127.0.0.1"] = answer
        async with reading(api, nodes.port) as reader:
            found = await reader.read(READ, asked("a"))
    assert not found.usable
    assert words in found.error


async def test_a_self_signed_kubelet_is_refused_with_the_options_name(tmp_path, authority):
    stranger = CertificateAuthority.create(now=dt.datetime.now(dt.UTC))
    api = api_of(authority)
    api.pods = {"a": pod_object("a", "127.0.0.1")}
    async with serving(tmp_path, "127.0.0.1", authority=authority, signer=stranger) as nodes:
        nodes.answers["127.0.0.1"] = lambda: summary(a=1)
        async with reading(api, nodes.port) as reader:
            found = await reader.read(READ, asked("a"))
        assert "--kubelet-insecure-tls" in found.error
        assert not nodes.requests
        async with reading(api, nodes.port, insecure=True) as reader:
            assert (await reader.read(READ, asked("a"))).pending


async def test_pods_that_cannot_be_counted(authority):
    api = api_of(authority)
    api.pods = {"host": pod_object("host", "127.0.0.1", hostNetwork=True)}
    async with reading(api, 1) as reader:
        assert "hostNetwork" in (await reader.read(READ, asked("host"))).error
        assert "pod gone " in (await reader.read(READ, asked("gone"))).error
        api.pods["moved"] = msgspec.structs.replace(
            pod_object("moved", "127.0.0.1"), status=PodStatus(pod_ip="10.9.9.9")
        )
        found = await reader.read(READ, asked("moved"))
        assert "pod moved " in found.error
        assert "127.0.0.1" in found.error
        assert (await reader.read(READ, asked())).pending
        assert (await reader.read(READ, asked(asleep=True))).value == 0
    async with reading(api, 1, account="") as reader:
        api.pods["a"] = pod_object("a", "127.0.0.1")
        assert "kubelet-stats" in (await reader.read(READ, asked("a"))).error


async def test_the_floor_is_of_the_pods_own_probes(tmp_path, authority):
    page = b"HTTP/1.0 200 OK\r\n\r\n" + b"x" * 5000

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(page)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    probes = {
        "readinessProbe": {"httpGet": {"path": "/", "port": "web"}, "periodSeconds": 10},
        "livenessProbe": {"tcpSocket": {"port": "web"}, "periodSeconds": 5},
        "ports": [{"name": "web", "containerPort": port}],
    }
    others = [
        {"readinessProbe": {"exec": {"command": ["true"]}}, "livenessProbe": {"grpc": {"port": 1}}},
        {"readinessProbe": {"httpGet": {"scheme": "HTTPS", "port": 1}}},
        {"readinessProbe": {"httpGet": {"port": 1}}, "startupProbe": {"tcpSocket": {"port": 1}}},
        {"livenessProbe": {"tcpSocket": {"port": 1, "host": "10.9.9.9"}}},
    ]
    api = api_of(authority)
    api.pods = {"a": pod_object("a", "127.0.0.1", containers=[probes, *others])}
    async with server, serving(tmp_path, "127.0.0.1", authority=authority) as nodes:
        nodes.answers["127.0.0.1"] = lambda: summary(a=1)
        async with reading(api, nodes.port) as reader:
            await reader.read(READ, asked("a"))
            (target,) = reader._targets.values()
    cost = target.pods["a"].cost
    measured = cost.once - TCP_PROBE - GRPC_PROBE - HTTPS_PROBE - HTTP
    assert HTTP_PROBE + len(page) < measured < HTTP_PROBE + len(page) + 500
    expected = (measured + GRPC_PROBE + HTTPS_PROBE + HTTP) / 10 + TCP_PROBE / 5
    assert cost.rate == pytest.approx(expected)


@pytest.mark.parametrize(
    "probe",
    [
        {"path": "/ HTTP/1.1\r\nHost: other\r\n\r\nDELETE /all"},
        {"httpHeaders": [{"name": "X", "value": "1\r\n\r\nDELETE /all HTTP/1.1"}]},
    ],
)
async def test_a_probe_that_would_be_two_requests_is_not_sent(tmp_path, authority, probe):
    sent = []

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        sent.append(await reader.read(1000))
        writer.close()

    server = await asyncio.start_server(listen, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    api = api_of(authority)
    container = {"readinessProbe": {"httpGet": {"port": port, **probe}, "periodSeconds": 10}}
    api.pods = {"a": pod_object("a", "127.0.0.1", containers=[container])}
    async with server, serving(tmp_path, "127.0.0.1", authority=authority) as nodes:
        nodes.answers["127.0.0.1"] = lambda: summary(a=1)
        async with reading(api, nodes.port) as reader:
            await reader.read(READ, asked("a"))
            (target,) = reader._targets.values()
    assert sent == []
    assert target.pods["a"].cost.once == HTTP


def test_a_summary_of_a_big_node_is_read_quickly():
    pods = {f"pod-{number}": number for number in range(250)}
    data = summary(**pods)
    began = time.process_time()
    for _ in range(20):
        assert len(read_summary(data)) == 250
    assert (time.process_time() - began) / 20 < 0.02


@pytest.mark.parametrize(
    "data", [b"", b'{"pods":[{"podRef":{"uid":"\xff"}}]}', b'{"x":' + b"[" * 2000]
)
def test_a_summary_that_cannot_be_read_is_an_error_of_its_kubelet(data: bytes):
    with pytest.raises(KubeletUnreadable):
        read_summary(data)


# Many of them


class ScriptedKubelets(Kubelets):
    """A hundred nodes whose summaries have the size of real ones; no connection is opened."""

    def __init__(self, access: KubeletAccess, summaries: dict[str, bytes]) -> None:
        super().__init__(access)
        self.summaries = summaries

    async def _read(self, address: str) -> NodeCounters:
        self.reads += 1
        return read_summary(self.summaries[address])


async def test_five_thousand_targets_cost_one_read_a_node_and_little_time(authority, monkeypatch):
    """Nodes are scripted, so TLS is not in it: some 4 ms for each node's read come on top."""
    api, nodes = api_of(authority), [f"10.0.0.{number}" for number in range(100)]
    names = {node: [f"{node}-{number}" for number in range(50)] for node in nodes}
    api.pods = {name: pod_object(name, node) for node, listed in names.items() for name in listed}
    padding = {"containers": [{"name": "c", "rootfs": {"usedBytes": 1}}] * 40}
    summaries = {}
    for node, listed in names.items():
        pods = msgspec.json.decode(summary(**dict.fromkeys(listed, 1)))["pods"]
        summaries[node] = msgspec.json.encode({"pods": [{**pod, **padding} for pod in pods]})
    kubelets = ScriptedKubelets(KubeletAccess(None, ""), summaries)
    reader = NetworkReader(api, kubelets)  # type: ignore[arg-type]
    monkeypatch.setattr("elasti.triggers.network.make_reader", lambda _settings: reader)
    subjects = [
        Subject(
            triggers=(ScaleTrigger("network"),),
            context=ReadContext(
                key=name,
                cooldown=COOLDOWN,
                namespace=f"team-{number % 40}",
                pods=lambda name=name: [ScrapeTarget(name, "127.0.0.1", (), name)],  # type: ignore[misc]
            ),
        )
        for number, name in enumerate(api.pods)
    ]
    settings = ReaderSettings(clock=SystemClock())
    async with Evaluator(settings=settings, stale_after=120) as evaluator:
        await evaluator.poll(subjects)
        assert (kubelets.reads, len(api.asked)) == (100, 5000)
        kubelets._known.clear()
        began = time.process_time()
        await evaluator.poll(subjects)
        used = time.process_time() - began
    assert (kubelets.reads, len(api.asked)) == (200, 5000)
    print(f"one round of 5000 targets on 100 nodes: {used:.2f} s, {used / INTERVAL:.1%} of a core")
    assert used / INTERVAL < 0.05
