"""Conflicts with other writers of replicas."""

from __future__ import annotations

from elasti.operator.handover.scale_conflicts import replicas_writer
from elasti.operator.model.records import ScaleConflict
from kubeloop.objects.times import unix_seconds


def test_three_undone_parks_within_an_hour_are_a_contest():
    contest = ScaleConflict()
    contest.record(0.0, "hpa", 60.0)
    contest.record(100.0, "hpa", 60.0)
    assert not contest.is_contested
    contest.record(200.0, "hpa", 60.0)
    assert contest.is_contested
    assert contest.until == 200.0 + 120.0
    contest.record(400.0, "hpa", 60.0)
    assert contest.until == 400.0 + 240.0


def test_undone_parks_far_apart_are_not_a_contest():
    contest = ScaleConflict()
    for hours in range(5):
        contest.record(hours * 3601.0, "x", 60.0)
    assert not contest.is_contested


def test_a_contest_ends_after_its_wait():
    contest = ScaleConflict()
    for at in (0.0, 1.0, 2.0):
        contest.record(at, "x", 60.0)
    contest.calm(10.0)
    assert contest.is_contested
    contest.calm(4000.0)
    assert not contest.is_contested


def test_the_writer_of_replicas_is_found_in_managed_fields():
    fields = [
        {
            "manager": "helm",
            "time": "2030-01-01T00:00:00Z",
            "fieldsV1": {"f:spec": {"f:replicas": {}}},
        },
        {
            "manager": "kubectl",
            "time": "2030-01-02T00:00:00Z",
            "fieldsV1": {"f:spec": {"f:replicas": {}}},
        },
        {"manager": "kcm", "time": "2030-01-03T00:00:00Z", "fieldsV1": {"f:status": {}}},
    ]
    written, found = unix_seconds("2030-01-02T00:00:00Z"), {"metadata": {"managedFields": fields}}
    assert replicas_writer(found, written + 9) == ("kubectl", written)
    assert replicas_writer(found, written - 9) == ("kubectl", written - 9), "its clock is ahead"
    assert replicas_writer({"metadata": {}}, written) == ("", written)
