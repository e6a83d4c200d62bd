"""What the page shows of ElastiServices, by plain values."""

from __future__ import annotations

import datetime as dt
from typing import Any

import msgspec
import pytest

from elasti.api.names import DOZE_GUARD, KEEP_AWAKE_ANNOTATION
from elasti.api.types import (
    CapacityStatus,
    DozeStatus,
    ElastiService,
    ElastiServiceSpec,
    ElastiServiceStatus,
    LastWake,
    ScaleTargetRef,
    SleepRecord,
    StatusCondition,
    UsageStatus,
)
from elasti.dashboard.model import (
    Surroundings,
    cold_start_stages,
    history,
    service_detail,
    service_row,
    state_of,
    trouble_of,
)
from kubeloop.objects.meta import JsonObject, ObjectMeta
from kubeloop.objects.times import format_time

NOW = dt.datetime(2030, 1, 8, 12, tzinfo=dt.UTC)
AROUND = Surroundings(NOW, NOW.replace(hour=0), {("shop", "web"): 3})
QUIET = Surroundings(NOW, NOW.replace(hour=0), {})
READY = StatusCondition("Ready", "True", "Valid")


def ago(**span: float) -> str:
    return format_time(NOW - dt.timedelta(**span))


def service(*conditions: StatusCondition, created: str = "", **status: Any) -> ElastiService:
    spec = ElastiServiceSpec(ScaleTargetRef("apps/v1", "Deployment", "web"), "web")
    meta = ObjectMeta(name="web", namespace="shop", creation_timestamp=created or ago(days=9))
    return ElastiService(spec, meta, ElastiServiceStatus(conditions=conditions, **status))


@pytest.mark.parametrize(
    ("es", "state", "trouble"),
    [
        (service(created=ago(seconds=5)), "pending", ""),
        (service(), "pending", "no operator has reconciled it yet; elasti doctor says why"),
        (service(READY, state="Proxy", phase="Asleep"), "asleep", ""),
        (
            service(StatusCondition("Ready", "False", "NoTCPPort", "no port")),
            "not ready",
            "no port",
        ),
        (
            service(READY, StatusCondition("ResolverAvailable", "False", "NoneReady", "none")),
            "not ready",
            "none",
        ),
        (
            service(
                READY, StatusCondition("ScaleContested", "True", "Undone", "flux"), state="Serve"
            ),
            "awake",
            "flux",
        ),
        (
            service(
                READY,
                StatusCondition("TriggersHealthy", "False", "Failing", "503", ago(minutes=2)),
                state="Serve",
            ),
            "awake",
            "503",
        ),
        (
            service(
                READY, StatusCondition("TriggersHealthy", "False", "NoTriggers"), state="Serve"
            ),
            "awake",
            "",
        ),
        (
            service(
                READY,
                StatusCondition("TriggersHealthy", "False", "Failing", "503", ago(seconds=9)),
                state="Waking",
            ),
            "waking",
            "",
        ),
        (service(READY, state="Waking", phase="Waking", since=ago(seconds=20)), "waking", ""),
    ],
)
def test_trouble_is_what_does_not_pass_by_itself(es: ElastiService, state: str, trouble: str):
    assert (state_of(es), trouble_of(es, NOW)) == (state, trouble)


def test_a_wake_up_that_takes_too_long_is_trouble():
    es = service(READY, state="Waking", phase="Waking", since=ago(minutes=5))
    assert "check why no pod of Deployment web is ready" in trouble_of(es, NOW)


def sleeping() -> ElastiService:
    return service(
        READY,
        state="Proxy",
        phase="Asleep",
        asleep_since=ago(hours=2),
        released_since=ago(hours=2),
        capacity=CapacityStatus(500, 2**30),
        usage=UsageStatus(ago(days=3)),
        last_wake=LastWake(ago(hours=3), "Request", "10.1.2.3", 2.5),
        recent=(
            SleepRecord(ago(days=2), ago(days=1), "Manual", 4.0),
            SleepRecord(ago(hours=10), ago(hours=3), "Request", 2.5),
        ),
    )


def test_a_row_has_what_the_table_shows():
    row = service_row(sleeping(), QUIET)
    assert row["key"] == "shop/web"
    assert (row["state"], row["held"], row["coldStart"], row["wakesToday"]) == (
        "asleep",
        0,
        2.5,
        "1",
    )
    assert row["released"] == {"cpu": 500, "memory": 2**30}
    assert row["lastWake"]["client"] == "10.1.2.3"
    msgspec.json.encode(service_detail(sleeping(), AROUND))


def test_what_holds_connections_is_waking_before_status_says_so():
    row = service_row(sleeping(), AROUND)
    assert (row["state"], row["held"], row["since"]) == ("waking", 3, None)
    awake = service_row(service(READY, state="Serve", since=ago(hours=1)), AROUND)
    assert (awake["state"], awake["since"]) == ("awake", ago(hours=1))


def test_a_history_says_what_it_does_not_know():
    found = history(sleeping(), NOW)
    assert found["knownSince"] == ago(days=3)
    assert [one.get("cause") for one in found["sleeps"]] == ["Manual", "Request", None]
    # 24 + 7 + 2 of 72 hours.
    assert found["text"] == "asleep 46%, 2 wake-ups"
    assert history(service(), NOW)["knownSince"] == format_time(NOW)


@pytest.mark.parametrize(
    ("doze", "state"), [("Dozing", "dozing"), ("Growing", "waking"), ("Stuck", "waking")]
)
def test_a_doze_has_a_word_of_its_own(doze: str, state: str):
    es = service(
        READY,
        StatusCondition("DozeStuck", "True" if doze == "Stuck" else "False", "Deferred", "no room"),
        state="Serve",
        doze=DozeStatus(doze, ago(hours=6)),
        released_since=ago(hours=6),
        capacity=CapacityStatus(899, 0),
        usage=UsageStatus(ago(days=1)),
        recent=(SleepRecord(ago(hours=20), ago(hours=14), "Trigger", mode="Doze"),),
    )
    es.metadata.annotations = {KEEP_AWAKE_ANNOTATION: DOZE_GUARD}
    row = service_row(es, AROUND)
    assert (row["state"], row["released"]) == (state, {"cpu": 899, "memory": 0})
    assert row["trouble"] == ("no room" if doze == "Stuck" else "")
    assert row["keptUntil"] is None, "the guard against older operators is not a wish"
    found = history(es, NOW)
    assert [one["mode"] for one in found["sleeps"]] == ["Doze", "Doze"]
    assert found["text"] == "asleep or dozing 50%, 1 wake-up"


def test_the_stages_of_a_cold_start_are_those_of_its_pod():
    wake = LastWake(ago(seconds=100), "Request", seconds=9.0)
    es = service(READY, last_wake=wake)

    def pod(created: int) -> JsonObject:
        conditions = [
            {"type": "PodScheduled", "lastTransitionTime": ago(seconds=98)},
            {"type": "Ready", "lastTransitionTime": ago(seconds=92)},
        ]
        running = {"state": {"running": {"startedAt": ago(seconds=93)}}}
        status = {"conditions": conditions, "containerStatuses": [running]}
        return {"metadata": {"creationTimestamp": ago(seconds=created)}, "status": status}

    stages = cold_start_stages(es, [pod(500), pod(99)])
    assert [stage["seconds"] for stage in stages] == [1.0, 1.0, 5.0, 1.0, 1.0]
    assert cold_start_stages(es, [pod(500)]) == []
    # The client is served before Kubernetes calls the pod ready; and whole seconds say nothing of a shorter time.
    es = service(READY, last_wake=LastWake(ago(seconds=100), "Request", "10.1.2.3", 7.5))
    stages = cold_start_stages(es, [pod(99)])
    assert [stage["seconds"] for stage in stages] == [1.0, 1.0, 5.0, 0.5, 0.0]
    assert stages[-1]["name"] == "Client served"
    es = service(READY, last_wake=LastWake(ago(seconds=100), "Request", "10.1.2.3", 0.76))
    assert cold_start_stages(es, [pod(99)]) == []
    assert cold_start_stages(service(READY), [pod(99)]) == []
