from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from tests.controller.election.lease_server import lease

from kubeloop.controller.election.lease import (
    CreateLease,
    ElectionConfig,
    ElectionConfigError,
    LeaseRecord,
    LeaseView,
    LeaveLease,
    UpdateLease,
    decide,
    release,
    renewal,
)

WALL = dt.datetime(2030, 1, 1, tzinfo=dt.UTC)
NOW_TEXT = "2030-01-01T00:00:00.000000Z"
CONFIG = ElectionConfig(namespace="ns", name="lead", identity="me")


def seen(body: dict[str, Any] | None, *, at: float) -> LeaseView:
    return LeaseView(identity="me").observe(body, at)


def spec(action: CreateLease | UpdateLease | LeaveLease) -> dict[str, Any]:
    assert isinstance(action, CreateLease | UpdateLease)
    found: dict[str, Any] = action.lease["spec"]
    return found


@pytest.mark.spec("L1")
def test_the_defaults_are_15_10_and_2_seconds() -> None:
    assert (CONFIG.lease_duration, CONFIG.renew_deadline, CONFIG.retry_period) == (15, 10.0, 2.0)


@pytest.mark.spec("L1")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lease_duration": 10}, "lease_duration 10 must be longer than renew_deadline 10.0"),
        ({"renew_deadline": 2.4}, "renew_deadline 2.4 must be longer than 1.2 times retry_period"),
        ({"lease_duration": 0}, "lease_duration 0 must be positive"),
        ({"renew_deadline": 0}, "renew_deadline 0 must be positive"),
        ({"retry_period": -1}, "retry_period -1 must be positive"),
        ({"renew_period": 5.5}, "renew_period 5.5 must be from 0 to half of renew_deadline 10.0"),
        ({"lease_duration": 10.5}, "whole seconds"),
        ({"identity": ""}, "identity must not be empty"),
        ({"name": ""}, "name must not be empty"),
        ({"namespace": ""}, "namespace must not be empty"),
    ],
)
def test_settings_that_cannot_be_safe_are_refused(change: dict[str, Any], message: str) -> None:
    settings: dict[str, Any] = {"namespace": "ns", "name": "lead", "identity": "me"}
    with pytest.raises(ElectionConfigError) as caught:
        ElectionConfig(**settings | change)
    assert message in str(caught.value)


@pytest.mark.spec("L3")
def test_without_a_lease_one_is_created_for_us() -> None:
    action = decide(seen(None, at=0), CONFIG, now=0, wall=WALL)
    assert action == CreateLease(
        {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"namespace": "ns", "name": "lead"},
            "spec": {
                "holderIdentity": "me",
                "leaseDurationSeconds": 15,
                "acquireTime": NOW_TEXT,
                "renewTime": NOW_TEXT,
                "leaseTransitions": 0,
            },
        }
    )


@pytest.mark.spec("L3")
def test_a_free_lease_is_taken_at_once() -> None:
    action = decide(seen(lease(""), at=5), CONFIG, now=5, wall=WALL)
    assert spec(action)["holderIdentity"] == "me"
    assert spec(action)["leaseTransitions"] == 4
    assert spec(action)["acquireTime"] == NOW_TEXT


@pytest.mark.spec("L2", "L3")
def test_anothers_lease_is_valid_for_its_duration_since_its_change() -> None:
    view = seen(lease("you", duration=20), at=100)
    assert decide(view, CONFIG, now=119.9, wall=WALL) == LeaveLease("you", 120)
    taken = decide(view, CONFIG, now=120, wall=WALL)
    assert spec(taken)["holderIdentity"] == "me"
    assert spec(taken)["leaseTransitions"] == 4
    assert spec(taken)["acquireTime"] == NOW_TEXT
    assert spec(taken)["leaseDurationSeconds"] == 15


@pytest.mark.spec("L2")
def test_only_a_changed_record_restarts_the_wait() -> None:
    view = seen(lease("you", renewed="r0"), at=0)
    assert view.observe(lease("you", renewed="r0"), 10).changed_at == 0
    assert view.observe(lease("you", renewed="r1"), 10).changed_at == 10


@pytest.mark.spec("L2")
def test_times_of_the_record_are_never_read_as_times() -> None:
    for text in ("1970-01-01T00:00:00Z", "2999-01-01T00:00:00Z", "not a time"):
        view = seen(lease("you", renewed=text, acquireTime=text), at=0)
        assert isinstance(decide(view, CONFIG, now=14.9, wall=WALL), LeaveLease)
        assert isinstance(decide(view, CONFIG, now=15.0, wall=WALL), UpdateLease)


@pytest.mark.spec("L2")
def test_a_lease_without_a_record_is_free() -> None:
    view = seen({"metadata": {"name": "lead"}}, at=0)
    assert spec(decide(view, CONFIG, now=0, wall=WALL))["holderIdentity"] == "me"


@pytest.mark.spec("L5")
def test_renewal_keeps_the_acquire_time_and_the_transitions() -> None:
    view = seen(lease("me"), at=0)
    for action in (
        renewal(view, CONFIG, now=1, wall=WALL),
        decide(view, CONFIG, now=1, wall=WALL),
    ):
        assert action is not None
        assert spec(action)["acquireTime"] == "a0"
        assert spec(action)["leaseTransitions"] == 3
        assert spec(action)["renewTime"] == NOW_TEXT


@pytest.mark.spec("L4")
def test_only_holder_with_valid_lease_may_renew_without_reading() -> None:
    mine, yours = seen(lease("me"), at=0), seen(lease("you"), at=0)
    assert renewal(mine, CONFIG, now=14.9, wall=WALL) is not None
    assert renewal(mine, CONFIG, now=15, wall=WALL) is None
    assert renewal(yours, CONFIG, now=0, wall=WALL) is None
    assert renewal(seen(None, at=0), CONFIG, now=0, wall=WALL) is None


@pytest.mark.spec("L8")
def test_release_empties_holder_for_one_second_and_keeps_transitions() -> None:
    action = release(seen(lease("me"), at=0), wall=WALL)
    assert action is not None
    assert spec(action)["holderIdentity"] == ""
    assert spec(action)["leaseDurationSeconds"] == 1
    assert spec(action)["leaseTransitions"] == 3


@pytest.mark.spec("L8")
def test_what_is_not_ours_is_not_released() -> None:
    assert release(seen(lease("you"), at=0), wall=WALL) is None
    assert release(seen(None, at=0), wall=WALL) is None


@pytest.mark.spec("L11")
def test_a_record_round_trips_through_a_lease() -> None:
    record = LeaseRecord(holder="h", duration=7, acquired="a", renewed="r", transitions=2)
    assert LeaseRecord.of(record.written_to({})) == record
    assert LeaseRecord.of({}) == LeaseRecord()
    assert LeaseRecord.of({"spec": {"holderIdentity": None}}) == LeaseRecord()


@pytest.mark.spec("L11")
def test_foreign_labels_and_fields_survive_a_write() -> None:
    body = lease("", preferredHolder="somebody", strategy="OldestEmulationVersion")
    body["metadata"]["resourceVersion"] = "7"
    action = decide(seen(body, at=0), CONFIG, now=0, wall=WALL)
    assert isinstance(action, UpdateLease)
    assert action.lease["metadata"] == body["metadata"]
    assert action.lease["spec"]["preferredHolder"] == "somebody"
    assert action.lease["spec"]["strategy"] == "OldestEmulationVersion"
    assert body["spec"]["holderIdentity"] == ""


@pytest.mark.spec("L10")
@pytest.mark.parametrize(
    ("holder", "age", "stale"),
    [
        ("you", 1000, False),
        ("me", 0, False),
        ("me", 15, False),
        ("me", 35, False),
        ("me", 35.1, True),
    ],
)
def test_only_a_holder_long_past_its_lease_is_stale(holder: str, age: float, stale: bool) -> None:
    view = seen(lease(holder), at=100)
    assert view.is_stale(100 + age, lease_duration=15, tolerance=20) is stale
