"""What the fleet view shows: labels, and the history of released capacity."""

from __future__ import annotations

import datetime as dt
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasti.api.types import (
    CapacityStatus,
    ElastiService,
    ElastiServiceSpec,
    ScaleTargetRef,
    SleepRecord,
    UsageStatus,
)
from elasti.api.types import ElastiServiceStatus as Status
from elasti.dashboard.feed import Feed
from elasti.dashboard.fleet import BUCKETS, fleet_view, history_of, labels_of
from kubeloop.client.errors import Forbidden
from kubeloop.client.errors import Status as Status403
from kubeloop.informer import Added
from kubeloop.objects.meta import JsonObject, Key, ObjectMeta
from kubeloop.objects.times import format_time
from kubeloop.testing.fake_client import FakeClient

NOW = dt.datetime(2030, 1, 8, tzinfo=dt.UTC)
WEEK = NOW.timestamp() - 7 * 86400


def ago(hours: float) -> str:
    return format_time(NOW - dt.timedelta(hours=hours))


def service(name: str, status: Status, **labels: str) -> ElastiService:
    spec = ElastiServiceSpec(ScaleTargetRef("apps/v1", "Deployment", name), name)
    return ElastiService(spec, ObjectMeta(name=name, namespace="shop", labels=labels), status)


def slept(*spans: tuple[float, float], counted: float = 240, **more: Any) -> Status:
    return Status(
        usage=UsageStatus(ago(counted)),
        capacity=CapacityStatus(500, 2**30),
        recent=tuple(SleepRecord(ago(since), ago(until)) for since, until in spans),
        **more,
    )


def test_a_sleep_is_where_it_was():
    status = slept((168.0, 167.5), (10, 8.25), asleep_since=ago(2))
    found = history_of([service("web", status)], WEEK, NOW)
    assert found["step"] == 3600
    assert len(found["cpu"]) == BUCKETS
    amounts = {at: round(value, 6) for at, value in enumerate(found["cpu"]) if value > 1e-6}
    assert amounts == {0: 250, 158: 500, 159: 375, 166: 500, 167: 500}
    assert found["memory"][158] == pytest.approx(2**30)
    assert found["sums"] == {"shop/web": pytest.approx((4.25 * 1.8e6, 4.25 * 3600 * 2**30))}  # fmt: skip
    assert found["since"] == found["complete"] == NOW.timestamp() - 240 * 3600


def test_of_a_fleet_the_first_and_the_last_to_be_counted_are_known():
    old = service("old", slept(counted=500))
    new = service("new", slept(counted=3))
    found = history_of([old, new, service("unseen", Status())], WEEK, NOW)
    assert (NOW.timestamp() - found["since"], NOW.timestamp() - found["complete"]) == (1.8e6, 10800)
    assert set(found["sums"]) == {"shop/old", "shop/new"}
    assert history_of([], WEEK, NOW)["since"] is None


TIMES = st.floats(-50, 400).map(ago) | st.sampled_from(["", "yesterday", "2030-01-08T25:00:00Z"])


@given(
    st.lists(st.tuples(TIMES, TIMES), max_size=25),
    TIMES,
    st.none() | TIMES,
    st.sampled_from([1, 7, 30, 90]),
)
def test_the_curve_adds_up_whatever_a_status_says(spans, counted, asleep_since, days):
    status = Status(
        usage=UsageStatus(counted, asleep_seconds=10**6, cpu_millicore_seconds=10**9),
        capacity=CapacityStatus(500, 2**30),
        recent=tuple(SleepRecord(*span) for span in spans),
        asleep_since=asleep_since,
    )
    found = history_of([service("web", status)], NOW.timestamp() - days * 86400, NOW)
    cpu, memory = found["sums"]["shop/web"]
    assert sum(found["cpu"]) * found["step"] == pytest.approx(cpu, rel=1e-6, abs=1)
    assert sum(found["memory"]) * found["step"] == pytest.approx(memory, rel=1e-6, abs=1e6)
    assert min(*found["cpu"], *found["memory"]) >= 0
    msgspec.json.encode(found)


# As the page asks for it


def labelled(kind: str, name: str, **labels: str) -> JsonObject:
    meta: JsonObject = {"name": name, "labels": labels}
    meta |= {"namespace": "shop"} if kind == "Service" else {}
    return {"apiVersion": "v1", "kind": kind, "metadata": meta}


def feed_of(client: FakeClient, *services: ElastiService, namespace: str = "") -> Feed:
    feed = Feed(client, namespace, "elasti")
    for es in services:
        feed._on_event(Added(Key(f"shop/{es.metadata.name}"), es, initial=True))
    return feed


@pytest.fixture(autouse=True)
def _now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elasti.dashboard.feed.local_time", lambda: NOW)


WEB = service("web", slept((20, 10)), tier="front")


async def test_labels_come_from_the_nearest_that_has_them():
    client = FakeClient(
        labelled("Namespace", "shop", team="shop", cost="7", tier="?"),
        labelled("Service", "web", team="web", tier="?"),
        labelled("Service", "mail", team="mail"),
    )
    for namespace in ("", "shop"):
        labels, unread = await labels_of(client, namespace, [WEB])
        assert labels == {"shop/web": {"team": "web", "cost": "7", "tier": "front"}}
        assert unread == []
    denied = Forbidden(Status403(code=403, message="not you"))
    client.fail_next(denied, path="/namespaces")
    labels, unread = await labels_of(client, "", [WEB])
    assert labels == {"shop/web": {"team": "web", "tier": "front"}}
    assert unread == ["namespaces"]


async def test_the_page_gets_the_labels_and_the_history_of_all():
    client = FakeClient(labelled("Service", "web", team="web"))
    found = await fleet_view(client, feed_of(client, WEB), 30)
    assert found["labels"] == {"shop/web": {"team": "web", "tier": "front"}}
    assert found["unread"] == []
    assert sum(found["cpu"]) * found["step"] == pytest.approx(10 * 3600 * 500)
