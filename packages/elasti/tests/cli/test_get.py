"""`elasti get`: on a cluster, and what it shows of plain values."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import errno
import json
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest
import yaml
from aiohttp import web
from tests.cli.environment import CommandEnvironment
from tests.resolver.cluster import FakeCluster, fake_operator
from tests.resolver.support import free_port, get, held, worker

from elasti.api.conditions import Obstacle
from elasti.api.states import STATES, State, state_word
from elasti.api.types import ElastiService, ElastiServiceSpec, ScaleTargetRef, StatusCondition
from elasti.api.types import ElastiServiceStatus as Status
from elasti.api.view import row_of, why_of
from elasti.api.wire import WakeOutcome
from elasti.cli.get import GetQuery, RowPrinter, cells, heads, listed
from elasti.cli.rendering import with_time_left
from elasti.dashboard.live import ResolverPod, counts, resolver_pods, sum_of
from kubeloop.aio.tasks import finish
from kubeloop.client.errors import Forbidden, KubeError
from kubeloop.client.errors import Status as ApiStatus
from kubeloop.http.client import ConnectFailed
from kubeloop.objects.meta import JsonObject, ObjectMeta
from tests.waiting import eventually
from tests.web_server import web_server

NOW = dt.datetime(2030, 1, 1, 0, 10, tzinfo=dt.UTC)


def elastiservice(*conditions: StatusCondition, name: str = "web", **status: Any) -> ElastiService:
    ref = ScaleTargetRef("apps/v1", "Deployment", "shop")
    meta = ObjectMeta(name=name, namespace="blue")
    return ElastiService(
        ElastiServiceSpec(ref, "web-svc"), meta, Status(conditions=conditions, **status)
    )


def told(kind: str, status: Any, reason: str, message: str = "") -> StatusCondition:
    return StatusCondition(kind, status, reason, message)


READY = told("Ready", "True", "Valid")
COOLING = told("MaySleep", "False", "Cooldown", "not over")


# Values


@pytest.mark.parametrize(
    ("es", "why"),
    [
        (elastiservice(), "NotSeen"),
        (elastiservice(READY, told("MaySleep", "True", "Asleep")), ""),
        (elastiservice(READY, COOLING), "Cooldown"),
        (elastiservice(READY, told("MaySleep", "True", "Idle")), "Idle"),
        (elastiservice(told("Ready", "False", "TargetMissing", "gone"), COOLING), "TargetMissing"),
        (elastiservice(READY, mode="proxy"), ""),
        (elastiservice(READY, mode="serve", replicas=1), "NotReported"),
    ],
)
def test_why_is_what_the_operator_says(es: ElastiService, why: str):
    assert why_of(es).reason == why


def test_a_deletion_is_shown_before_everything_else():
    es = elastiservice(READY)
    es.metadata.deletion_timestamp = "2030-01-01T00:00:00Z"
    assert why_of(es).reason == "Deleting"


def test_a_row_has_every_column_in_its_place():
    es = elastiservice(
        READY,
        COOLING,
        mode="serve",
        state="Serve",
        replicas=2,
        last_scaled_up_time="2030-01-01T00:07:00Z",
        awake_until="2030-01-01T00:15:00Z",
    )
    row = row_of(es, {("blue", "web-svc"): 3}, {"blue/web": {1: 7.0, 0: 0.25}})
    shown = dict(
        zip(
            heads(wide=True, everywhere=True),
            cells(row, NOW, wide=True, everywhere=True),
            strict=True,
        )
    )
    assert shown == {
        "NAMESPACE": "blue",
        "NAME": "web",
        "SERVICE": "web-svc",
        "STATE": "awake",
        "TARGET": "Deployment/shop",
        "REPLICAS": "2",
        "HELD": "3",
        "LAST WAKE": "3m",
        "READY": "True",
        "COOLDOWN": "15m",
        "TRIGGERS": "0.25, 7",
        "WHY NOT ASLEEP": "Cooldown (5m left): not over",
    }
    narrow = cells(row, NOW, wide=False, everywhere=False)
    assert len(narrow) == len(heads(wide=False, everywhere=False))
    assert narrow[-1].startswith("Cooldown (5m left): not over")


def test_every_state_of_the_operator_has_a_users_word():
    assert {state.value for state in State} == STATES.keys()
    assert {"asleep", "awake"} <= {state_word(state) for state in STATES}
    assert not {state_word(state) for state in STATES} & STATES.keys()


def test_what_is_not_known_is_a_dash():
    row = row_of(elastiservice(), None)
    shown = cells(row, NOW, wide=False, everywhere=False)
    assert shown[2] == shown[4] == shown[5] == shown[6] == "-"


@pytest.mark.parametrize(
    ("until", "shown"),
    [(NOW.timestamp() + 30, "X (30s left): y"), (NOW.timestamp() - 60, "X: y"), (None, "X: y")],
)
def test_a_reason_whose_end_is_known_has_the_time_left(until: float | None, shown: str):
    assert with_time_left(Obstacle("X", "y", until), NOW) == shown


def test_scripts_get_lists_and_names():
    rows = [row_of(elastiservice(READY, COOLING, mode="serve"), {})]
    (parsed,) = json.loads(listed(rows, GetQuery(output="json"), NOW))
    assert parsed["whyNotAsleep"]["reason"] == "Cooldown"
    assert parsed["held"] == 0
    assert yaml.safe_load(listed(rows, GetQuery(output="yaml"), NOW)) == [parsed]
    assert (
        listed(rows, GetQuery(output="name"), NOW) == "elastiservice.elasti.truefoundry.com/web\n"
    )


def test_a_row_that_did_not_change_is_not_printed_again(capsys: pytest.CaptureFixture[str]):
    rows = [row_of(elastiservice(READY), None)]
    printer = RowPrinter(GetQuery(), rows)
    printer.show(rows[0])
    printer.show(row_of(elastiservice(READY, COOLING), None))
    printed = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in printed] == ["NAME", "web", "web"]


@pytest.mark.parametrize(("terminal", "width"), [(True, 40), (False, None)])
def test_a_row_fits_the_terminal_and_a_pipe_gets_all_of_it(monkeypatch, terminal, width):
    long = told("MaySleep", "False", "InUse", "the sentence goes on and on " * 9)
    rows = [row_of(elastiservice(READY, long, mode="serve"), {})]
    monkeypatch.setattr("sys.stdout.isatty", lambda: terminal)
    monkeypatch.setenv("COLUMNS", "40")
    _, row = listed(rows, GetQuery(), NOW).splitlines()
    assert (len(row) <= 40 and row.endswith("…")) if width else row.endswith("on and on")


# Held


async def test_a_resolvers_own_metrics_are_understood():
    cluster, port = FakeCluster(), free_port()
    cluster.elasti_service("web", ("http", port))
    cluster.private_service("web")
    async with (
        fake_operator(lambda _: WakeOutcome.SCALING) as url,
        worker(cluster, url) as resolver,
    ):
        waiting = asyncio.create_task(get(port))
        try:
            await eventually(lambda: held(resolver) == 1, "a held connection")
            text = (await resolver.view.metrics()).decode()
        finally:
            await finish([waiting])
    assert dict(counts(text)) == {("shop", "web"): 1}


PODS = [ResolverPod("r-1", "10.0.0.1", 8013), ResolverPod("r-2", "10.0.0.2", 8013)]
METRICS = '# TYPE elasti_resolver_queued_count gauge\nelasti_resolver_queued_count{namespace="blue",service="web"} 2.0\n'


def test_held_is_the_sum_over_all_resolvers():
    assert sum_of(PODS, [METRICS, METRICS]).counts == {("blue", "web"): 4}


def unreachable() -> Exception:
    return ConnectFailed(OSError(errno.ECONNREFUSED, "Connect call failed"))


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (Forbidden(ApiStatus(message="no")), "needs get pods/proxy"),
        (KubeError("away"), "away"),
        (TimeoutError(), "no answer in time"),
        (
            '# TYPE elasti_resolver_queued_count gauge\nelasti_resolver_queued_count{source="web"} 2.0\n',
            "r-2 was not reached: its elasti_resolver_queued_count has no label service",
        ),
        (unreachable(), "r-2 was not reached: Connection refused"),
        (ConnectFailed(socket.gaierror(-2, "Name or service not known")), "service not known"),
        ("not { metrics", "r-2"),
    ],
)
def test_one_resolver_that_does_not_say_leaves_held_unknown(answer: Any, why: str):
    held = sum_of(PODS, [METRICS, answer])
    assert held.counts is None
    assert why in held.why


def test_resolvers_are_found_in_slices_each_once():
    endpoint = {"addresses": ["10.0.0.1"], "targetRef": {"kind": "Pod", "name": "r-1"}}
    six = {"addresses": ["fd00::1"], "targetRef": {"kind": "Pod", "name": "r-1"}}
    ports = [{"name": "proxy", "port": 8012}, {"name": "admin", "port": 9013}]
    slices: list[JsonObject] = [
        {"ports": ports, "endpoints": [endpoint]},
        {"ports": ports, "endpoints": [six]},
        {"endpoints": None},
    ]
    assert resolver_pods(slices) == [ResolverPod("r-1", "10.0.0.1", 9013)]


# On a cluster


@pytest.fixture
def pair(environment: CommandEnvironment) -> CommandEnvironment:
    """One that sleeps and one that does not."""
    names = [es["metadata"]["name"] for es in environment.call(_all(environment))]
    if "get-asleep" not in names:
        environment.call(environment.rig.web(0, "get-asleep"))
        environment.call(environment.rig.web(1, "get-awake"))
        environment.call(environment.rig.becomes("Proxy", "get-asleep"))
        environment.call(environment.rig.tells("MaySleep", "NoTriggers", "get-awake"))
    return environment


async def _all(environment: CommandEnvironment) -> list[JsonObject]:
    return [item async for item in environment.rig.elastiservices.items()]


def test_it_shows_who_sleeps_and_why_others_do_not(pair: CommandEnvironment):
    result = pair.run("get", "get-asleep", "get-awake")
    assert result.exit_code == 0
    head, asleep, awake = result.stdout.splitlines()
    assert head.split()[:4] == ["NAME", "SERVICE", "STATE", "TARGET"]
    assert asleep.split()[:5] == [
        "get-asleep",
        "get-asleep",
        "asleep",
        "Deployment/get-asleep",
        "0",
    ]
    assert "NoTriggers: it has no triggers" in awake
    # The pretended resolver has no metrics, and a dev cluster no proxy to pods.
    assert result.stderr.startswith("HELD is unknown: resolver ")


def test_all_namespaces_and_every_form(pair: CommandEnvironment):
    assert pair.ok("get", "-A").startswith("NAMESPACE ")
    assert "COOLDOWN" in pair.ok("get", "-o", "wide").splitlines()[0]
    as_json = json.loads(pair.ok("get", "-A", "-o", "json"))
    assert pair.namespace in {row["namespace"] for row in as_json}
    shown = [row["name"] for row in yaml.safe_load(pair.ok("get", "-A", "-o", "yaml"))]
    assert shown == [row["name"] for row in as_json]
    assert "elastiservice.elasti.truefoundry.com/get-awake" in pair.ok("get", "-o", "name")


def test_a_report_lists_what_has_no_requests_as_not_counted(pair: CommandEnvironment):
    text = pair.ok("report")
    assert f"{pair.namespace}" in text
    assert "Their pods request nothing" in text
    assert json.loads(pair.ok("report", "--since", "7d", "-o", "json"))["cpu_core_hours"] == 0


def test_an_empty_list_is_reported_on_standard_error(environment: CommandEnvironment):
    result = environment.run("get", "-n", "default")
    assert (result.exit_code, result.stdout) == (0, "")
    assert "There is no ElastiService in namespace default." in result.stderr
    assert json.loads(environment.ok("get", "-n", "default", "-o", "json")) == []


def test_names_and_all_namespaces_exclude_each_other(environment: CommandEnvironment):
    assert environment.run("get", "web", "-A").exit_code == 2


def test_what_is_there_is_shown_beside_what_is_not(pair: CommandEnvironment):
    result = pair.run("get", "get-asleep", "missing", "get-awake", "lacking")
    assert result.exit_code == 3
    assert [row.split()[0] for row in result.stdout.splitlines()] == [
        "NAME",
        "get-asleep",
        "get-awake",
    ]
    assert "there is no ElastiService missing" in result.stderr
    assert "there is no ElastiService lacking" in result.stderr


def test_an_unknown_name_is_an_error_that_names_similar_ones(pair: CommandEnvironment):
    result = pair.run("get", "get-awoke")
    assert result.exit_code == 3
    assert "there is no ElastiService get-awoke" in result.stderr
    assert "get-awake" in result.stderr


@contextlib.asynccontextmanager
async def _metrics_server(text: str) -> AsyncIterator[tuple[str, int]]:
    async def serve(_request: web.Request) -> web.Response:
        return web.Response(text=text)

    async with web_server(web.get("/metrics", serve)) as url:
        yield "127.0.0.1", int(url.rpartition(":")[2])


def test_held_is_asked_of_resolvers_that_are_on_this_machine(pair: CommandEnvironment):
    line = f'{{namespace="{pair.namespace}",service="get-asleep"}} 5.0'
    server = _metrics_server(
        f"# TYPE elasti_resolver_queued_count gauge\nelasti_resolver_queued_count{line}\n"
    )
    address, port = pair.call(server.__aenter__())
    try:
        pair.call(_list_resolver(pair, "held-here", address, port))
        result = pair.run("get", "-o", "json", "--elasti-namespace", "held-here")
    finally:
        pair.call(server.__aexit__(None, None, None))
    assert result.stderr == ""
    held = {row["name"]: row["held"] for row in json.loads(result.stdout)}
    assert (held["get-asleep"], held["get-awake"]) == (5, 0)


async def _list_resolver(
    environment: CommandEnvironment, namespace: str, address: str, port: int
) -> None:
    client = environment.rig.client
    await client.resource("v1/namespaces").create({"metadata": {"name": namespace}})
    await client.resource("discovery.k8s.io/v1/endpointslices", namespace=namespace).create(
        {
            "metadata": {
                "name": "r",
                "labels": {"kubernetes.io/service-name": "elasti-resolver-service"},
            },
            "addressType": "IPv4",
            "ports": [{"name": "admin", "port": port}],
            "endpoints": [{"addresses": [address]}],
        }
    )


def test_without_any_resolver_held_says_so(pair: CommandEnvironment):
    result = pair.run("get", "--elasti-namespace", "kube-public")
    assert "no resolver is behind Service kube-public/elasti-resolver" in result.stderr


def test_watch_prints_what_changes_until_it_is_interrupted(pair: CommandEnvironment):
    command = [sys.executable, "-m", "elasti", "get", "-w", "-o", "json"]
    command += ["--kubeconfig", str(pair._namespaced(pair.admin))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        seen: list[dict[str, Any]] = []

        def until(name: str, state: str) -> None:
            while not any((row["name"], row["state"]) == (name, state) for row in seen):
                line = process.stdout.readline()  # type: ignore[union-attr]  # asserted above
                assert line, "it ended"
                seen.append(json.loads(line))

        try:
            until("get-asleep", "asleep")
            pair.call(pair.rig.web(0, "get-later"))
            until("get-later", "asleep")
            pair.call(pair.rig.elastiservices.delete("get-later"))
            while seen[-1]["whyNotAsleep"]["reason"] != "Deleted":
                seen.append(json.loads(process.stdout.readline()))
            process.send_signal(signal.SIGINT)
            assert process.wait(30) == 0
        finally:
            process.kill()
