"""`elasti describe`: values from objects, advice from values, and the whole on a cluster."""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
from typing import Any

import msgspec
import pytest
from tests.cli.environment import CommandEnvironment

from elasti.api.conditions import WakeCause
from elasti.api.names import (
    ENROLLED_FROM_ANNOTATION,
    ENROLLED_LABEL,
    SLEEP_ANNOTATION,
    WAKE_ANNOTATION,
)
from elasti.api.types import (
    AutoscalerSpec,
    CapacityStatus,
    DozedContainer,
    DozeStatus,
    ElastiService,
    ElastiServiceSpec,
    EnabledPeriod,
    IgnorePreset,
    IgnoreRule,
    IgnoreSpec,
    LastWake,
    ResolverPort,
    ScaleTargetRef,
    ScaleTrigger,
    StatusCondition,
    TriggerStatus,
    UsageStatus,
    WakeSpec,
)
from elasti.api.types import ElastiServiceStatus as Status
from elasti.cli.describe.model import (
    Description,
    PodSummary,
    ServiceSummary,
    SliceSummary,
    TargetSummary,
    Unreadable,
    advice,
    event_from,
    pod_from,
    slice_from,
)
from elasti.cli.describe.text import as_text
from elasti.dashboard.live import trigger_values
from kubeloop.objects.meta import JsonObject, ObjectMeta
from kubeloop.objects.patches import MergePatch

NOW = dt.datetime(2030, 1, 1, 0, 10, tzinfo=dt.UTC)
FINE = (
    StatusCondition("Ready", "True", "Valid"),
    StatusCondition("TriggersHealthy", "True", "Healthy"),
    StatusCondition("MaySleep", "False", "InUse", "triggers[0] is busy"),
)
PODS = (
    PodSummary(
        name="web-1",
        phase="Running",
        ready=True,
        restarts=0,
        node="n1",
        trouble="",
        created=NOW - dt.timedelta(hours=3),
    ),
)
SERVICES = (
    ServiceSummary(role="public", name="web", exists=True, kind="ClusterIP", ports=("80/TCP",)),
    ServiceSummary(role="private", name="web-pvt", exists=True, kind="ClusterIP"),
)


def piece(of: str, ready: int = 1, total: int = 1) -> SliceSummary:
    return SliceSummary(
        name=f"of-{of}", service="web", of=of, ready=ready, total=total, ports=(80,)
    )


def described(state: str = "Serve", **changes: Any) -> Description:
    spec = ElastiServiceSpec(
        ScaleTargetRef("apps/v1", "Deployment", "web"),
        "web",
        given_triggers=(
            ScaleTrigger("prometheus", {"query": "up", "threshold": 1, "authorization": "s3cret"}),
        ),
        autoscaler=AutoscalerSpec("keda", "web"),
        enabled_period=EnabledPeriod("0 9 * * 1-5", "8h"),
    )
    meta = ObjectMeta(name="web", namespace="shop", generation=2)
    status = Status(
        mode="serve",
        state=state,
        observed_generation=2,
        replicas=1,
        conditions=FINE,
        resolver_ports=(ResolverPort(80, 20001),),
        last_scaled_up_time="2030-01-01T00:00:00Z",
    )
    base = Description(
        es=ElastiService(spec, meta, status),
        now=NOW,
        target=TargetSummary(wanted=1, present=1, selector="app=web"),
        pods=PODS,
        services=SERVICES,
        slices=(piece("pods"),),
        events=(),
        held=0,
    )
    return dataclasses.replace(base, **changes)


def with_conditions(*conditions: StatusCondition, **meta: Any) -> ElastiService:
    es = described().es
    status = msgspec.structs.replace(es.status, conditions=conditions)
    for name, value in meta.items():
        setattr(es.metadata, name, value)
    return msgspec.structs.replace(es, status=status)


# What the operator has noted


def test_what_does_not_wake_it_and_its_template_are_shown():
    text = as_text(described())
    assert "Ignores:        the installation's presets\n" in text
    assert "TCP Connect\n" in text
    assert "Enrolled:" not in text
    rule = IgnoreRule(user_agents=("x",))
    ignore = IgnoreSpec(presets=(IgnorePreset.PROBES, IgnorePreset.CRAWLERS), rules=(rule,))
    es = with_conditions(
        labels={ENROLLED_LABEL: "true"}, annotations={ENROLLED_FROM_ANNOTATION: "slow/0123"}
    )
    spec = msgspec.structs.replace(es.spec, wake=WakeSpec(ignore=ignore, tcp="Protocol"))
    text = as_text(described(es=msgspec.structs.replace(es, spec=spec)))
    assert "Ignores:        Probes, Crawlers, 1 own rule\n" in text
    assert "TCP Protocol\n" in text
    assert "Enrolled:       from ElastiTemplate slow\n" in text


def test_wakes_sleep_and_triggers_are_shown():
    status = msgspec.structs.replace(
        described().es.status,
        last_wake=LastWake("2030-01-01T00:00:00Z", WakeCause.REQUEST, "10.1.2.3 GET /x", 2.4),
        sleeps_at="2030-01-01T01:00:00Z",
        triggers=(
            TriggerStatus("pods", "0.1", "2030-01-01T00:00:00Z"),
            TriggerStatus("pods", "0.1"),
            TriggerStatus("prometheus", "1", last_error="no answer"),
        ),
        usage=UsageStatus("2030-01-01T00:00:00Z", 3600, 7),
    )
    es = msgspec.structs.replace(described().es, status=status)
    text = as_text(described(es=es, values={0: 0.02}))
    assert "ago: Request (10.1.2.3 GET /x), took 2.4 s" in text
    assert "if unused" in text
    assert "0.02 now, below 0.1 for 10m" in text
    assert "active within the last minute" in text
    assert "failing: no answer" in text
    assert "7 wake-ups and 60m asleep in 10m" in text


@pytest.mark.parametrize(
    ("state", "done", "shown"),
    [
        ("Shrinking", 1, "dozing: its pods serve; their requests shrink"),
        ("Dozing", 2, "dozing: its pods serve with small requests"),
        ("Growing", 0, "waking: its pods serve; their requests grow back"),
        ("Stuck", 1, "waking: its pods serve; a node has no room for their requests"),
    ],
)
def test_a_doze_is_shown_with_its_originals(state: str, done: int, shown: str):
    containers = (
        DozedContainer("abc", "app", "900m", "1m", "1Gi", "512Mi"),
        DozedContainer("abc", "side", memory="1Gi", dozed_memory="64Mi"),
    )
    since = "2030-01-01T00:00:00Z"
    status = msgspec.structs.replace(
        described().es.status,
        doze=DozeStatus(state, since, containers=containers, pods=done, pending=2 - done),
        capacity=CapacityStatus(1798, 2**30),
        released_since=since,
        conditions=(*FINE[:2], StatusCondition("MaySleep", "True", "Dozing")),
        usage=UsageStatus(since, wakes=1, dozing_seconds=600),
    )
    es = msgspec.structs.replace(described().es, status=status)
    lines = [" ".join(line.split()) for line in as_text(described(es=es)).splitlines()]
    verb = "shrunk" if state in ("Shrinking", "Dozing") else "restored"
    assert f"State: {shown}" in lines
    assert "Why not asleep: it dozes" in lines
    assert (
        f"Dozing for: 10m: {done} of 2 pods {verb}, 1798m CPU and 1024 MiB of memory given back"
        in lines
    )
    assert "Request app: CPU 900m -> 1m, memory 1Gi -> 512Mi (template abc)" in lines
    assert "Request side: memory 1Gi -> 64Mi (template abc)" in lines
    assert "Usage: 1 wake-up and 0s asleep, 10m dozing in 10m" in lines
    bare = msgspec.structs.replace(es, status=msgspec.structs.replace(status, released_since=None))
    assert f"{verb}, 0m CPU given back" in as_text(described(es=bare))


def test_the_values_of_triggers_are_read_from_an_operators_metrics():
    metrics = """elasti_trigger_value{crd_name="shop/web",trigger="0"} 0.02
elasti_trigger_value{crd_name="shop/web",trigger="1"} 3
elasti_trigger_value{crd_name="shop/other",trigger="0"} 9
"""
    assert trigger_values(metrics) == {"shop/web": {0: 0.02, 1: 3.0}, "shop/other": {0: 9.0}}
    assert trigger_values("") == {}


# Advice


def test_nothing_is_reported_when_nothing_is_wrong():
    assert list(advice(described())) == []


ASKED_LONG_AGO = "2030-01-01T00:00:00.000000Z"


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (described(es=with_conditions()), "No operator has reconciled"),
        (described(es=with_conditions(*FINE, generation=3)), "generation 3, observed 2"),
        (
            described(es=with_conditions(*FINE, annotations={WAKE_ANNOTATION: ASKED_LONG_AGO})),
            "A request to wake has been waiting for 10m",
        ),
        (
            described(es=with_conditions(*FINE, annotations={SLEEP_ANNOTATION: ASKED_LONG_AGO})),
            "A request to sleep has been waiting",
        ),
        (
            described(
                es=with_conditions(StatusCondition("Ready", "False", "HeadlessService", "it is"))
            ),
            "Ready is False (HeadlessService): it is.",
        ),
        (
            described(es=with_conditions(StatusCondition("Ready", "True", "Valid", "no probe."))),
            "It may sleep, but: no probe.",
        ),
        (
            described(es=with_conditions(StatusCondition("DozeStuck", "True", "Deferred", "full"))),
            "DozeStuck is True (Deferred): full.",
        ),
        (
            described(
                es=with_conditions(StatusCondition("ScaleContested", "True", "Undone", "argo"))
            ),
            "ScaleContested is True",
        ),
        (
            described(
                es=with_conditions(
                    StatusCondition(
                        "MaySleep",
                        "False",
                        "AttemptEnded",
                        "the last attempt to put it to sleep ended: the target could not be parked: KEDA is silent",
                    )
                )
            ),
            "the target could not be parked: KEDA is silent.",
        ),
        (
            described(pods=(dataclasses.replace(PODS[0], trouble="ImagePullBackOff"),)),
            "Pod web-1 is not ready: ImagePullBackOff.",
        ),
        (
            described(pods=(dataclasses.replace(PODS[0], ready=False, restarts=5),)),
            "kubectl logs -n shop web-1 --previous",
        ),
        (
            described("Waking", pods=(), slices=(piece("resolver"),)),
            "Deployment web has no pod yet",
        ),
        (
            described(services=(dataclasses.replace(SERVICES[1], exists=False),)),
            "The private Service web-pvt is missing",
        ),
        (described(slices=(piece("pods", ready=0),)), "connections to it are refused now"),
        (
            described("Proxy", slices=(piece("pods", 0, 0),)),
            "no resolver is in the rotation of Service web",
        ),
    ],
)
def test_what_is_wrong_gets_a_sentence(found: Description, words: str):
    assert words in "\n".join(advice(found))


def test_what_is_not_known_is_not_taken_for_wrong():
    unknown = Unreadable("forbidden")
    found = described("Waking", pods=unknown, services=unknown, slices=unknown, events=unknown)
    assert list(advice(found)) == []


def test_one_that_is_refused_waits_for_no_private_service():
    refused = StatusCondition("Ready", "False", "InvalidSpec", "correct it")
    missing = (dataclasses.replace(SERVICES[1], exists=False),)
    found = described(es=with_conditions(refused), services=missing)
    assert list(advice(found)) == ["Ready is False (InvalidSpec): correct it."]


def test_a_request_that_quiets_the_triggers_of_a_sleeper_is_not_a_problem():
    es = with_conditions(*FINE, annotations={SLEEP_ANNOTATION: ASKED_LONG_AGO})
    es = msgspec.structs.replace(es, status=msgspec.structs.replace(es.status, state="Proxy"))
    assert list(advice(described(es=es, slices=(piece("resolver"),)))) == []


# Text


def test_the_text_has_every_part_and_no_secret():
    text = as_text(described(advice=("Do this.",)))
    for part in (
        "Target:         Deployment/web (apps/v1): 1 desired, 1 running",
        "Cooldown:       15m",
        "Trigger 0:      prometheus: query up, threshold 1",
        "Autoscaler:     keda web",
        "Enabled:        0 9 * * 1-5 for 8h (UTC)",
        "Held:           0",
        "Last wake:      10m ago",
        "Why not asleep: InUse: triggers[0] is busy",
        "80 -> 20001",
        "Events:\n  none",
        "Advice:\n  Do this.",
    ):
        assert part in text
    assert "s3cret" not in text


def test_what_could_not_be_read_says_so():
    unknown = Unreadable("User x cannot list pods")
    text = as_text(described(target=unknown, pods=unknown, held=None, held_why="no proxy"))
    assert "Pods:\n  unknown: User x cannot list pods" in text
    assert "Held:           unknown: no proxy" in text
    assert described(pods=unknown).to_json()["pods"] == {"unknown": "User x cannot list pods"}


# Objects


def container(**state: Any) -> JsonObject:
    return {"restartCount": 2, "state": state}


@pytest.mark.parametrize(
    ("status", "trouble"),
    [
        ({"containerStatuses": [container(running={})]}, ""),
        ({"containerStatuses": [container(waiting={"reason": "ContainerCreating"})]}, ""),
        (
            {"containerStatuses": [container(waiting={"reason": "ErrImagePull", "message": "no"})]},
            "ErrImagePull: no",
        ),
        (
            {
                "conditions": [
                    {
                        "type": "PodScheduled",
                        "status": "False",
                        "reason": "Unschedulable",
                        "message": "0/3 nodes",
                    }
                ]
            },
            "Unschedulable: 0/3 nodes",
        ),
    ],
)
def test_a_pods_trouble_is_found(status: JsonObject, trouble: str):
    assert pod_from({"metadata": {"name": "p"}, "status": status}).trouble == trouble


def test_a_terminating_pod_is_shown_as_terminating():
    gone = {"metadata": {"name": "p", "deletionTimestamp": "x"}, "status": {"phase": "Running"}}
    assert pod_from(gone).phase == "Terminating"


def test_endpoints_without_a_word_count_as_ready():
    endpoints = [{"conditions": {}}, {"conditions": {"ready": False}}, {}]
    obj = {"metadata": {"name": "s"}, "endpoints": endpoints, "ports": [{"port": 80}]}
    found = slice_from(obj, resolver_names=frozenset({"s"}))
    assert (found.ready, found.total, found.of, found.ports) == (2, 3, "resolver", (80,))


def test_events_of_both_generations_are_read():
    old = {"metadata": {}, "lastTimestamp": "2030-01-01T00:00:00Z", "count": 3, "message": "m\n"}
    assert (event_from(old).count, event_from(old).message) == (3, "m")
    series = {"count": 4, "lastObservedTime": "2030-01-01T00:00:01.000000Z"}
    new = {"metadata": {}, "eventTime": "2030-01-01T00:00:00.000000Z", "series": series}
    assert event_from(new).count == 4
    assert event_from(new).at == dt.datetime(2030, 1, 1, 0, 0, 1, tzinfo=dt.UTC)


# On a cluster


def test_everything_about_one_that_sleeps(environment: CommandEnvironment):
    environment.call(environment.rig.web(0, "told"))
    environment.call(environment.rig.becomes("Proxy", "told"))
    text = environment.ok("describe", "told")
    for part in (
        "Name:           told",
        "State:          asleep: the resolver takes its traffic",
        "Why not asleep: it is asleep",
        "Deployment/told (apps/v1): 0 desired, 0 running",
        "Triggers:       none: it sleeps only on request",
        "resolver   1 of 1",
        "elasti-told-pvt-",
    ):
        assert part in text
    found = json.loads(environment.ok("describe", "told", "-o", "json"))
    assert found["elastiService"]["metadata"]["name"] == "told"
    assert found["target"] == {"wanted": 0, "present": 0, "selector": "app=told"}
    assert {piece["of"] for piece in found["slices"]} == {"pods", "resolver"}


def test_the_tree_of_what_it_needs_has_the_state_of_each(environment: CommandEnvironment):
    rig = environment.rig
    environment.call(rig.web(0, "tree-db"))
    environment.call(rig.web(0, "tree-api", dependsOn=[{"name": "tree-db"}]))
    needs = [{"name": "tree-api"}, {"name": "tree-gone"}]
    environment.call(rig.web(0, "tree", dependsOn=needs))
    for name in ("tree-db", "tree-api", "tree"):
        environment.call(rig.becomes("Proxy", name))
    environment.call(rig.elastiservices.patch("tree-db", MergePatch({"spec": {"suspend": True}})))
    environment.call(rig.tells("MaySleep", "Suspended", "tree-db"))
    assert (
        "Depends on:     tree-api: asleep\n"
        "                  tree-db: awake\n"
        "                tree-gone: ignored\n"
    ) in environment.ok("describe", "tree")
    found = json.loads(environment.ok("describe", "tree", "-o", "json"))
    assert found["dependencies"] == ["tree-api: asleep", "  tree-db: awake", "tree-gone: ignored"]


def test_unreadable_parts_are_left_out_with_the_reason(environment: CommandEnvironment):
    environment.call(environment.rig.web(0, "half-told", dependsOn=[{"name": "other"}]))
    environment.call(environment.rig.becomes("Proxy", "half-told"))
    rule = {
        "apiGroups": ["elasti.truefoundry.com"],
        "resources": ["elastiservices"],
        "verbs": ["get"],
    }
    only_gets = environment.user("only-gets", rule)
    text = environment.ok("describe", "half-told", kubeconfig=only_gets)
    assert "State:          asleep" in text
    assert "Events:\n  unknown: events is forbidden" in text
    assert "Services:\n  unknown: services" in text
    assert "Depends on:     unknown: elastiservices" in text


def test_a_missing_target_is_what_the_advice_begins_with(environment: CommandEnvironment):
    environment.call(environment.rig.service("no-target"))
    environment.call(environment.rig.elastiservice("no-target"))
    environment.call(environment.rig.tells("Ready", "TargetMissing", "no-target"))
    text = environment.ok("describe", "no-target")
    assert "Advice:\n  Ready is False (TargetMissing): there is no Deployment no-target" in text
