from __future__ import annotations

import datetime as dt

import msgspec
from tests.controllers.builders import NOW, a_deployment, a_replica_set, ago

from devkube.controllers import deployment_status
from devkube.controllers.deployment_plan import (
    ObservedDeployment,
    new_replica_set,
    plan_deployment,
    surplus_history,
    tell_apart,
    wanted_annotations,
)

REVISION = "deployment.kubernetes.io/revision"


def progressing(reason: str, *, since: float, status: str = "True") -> dict[str, object]:
    return {
        "conditions": [
            {
                "type": "Progressing",
                "status": status,
                "reason": reason,
                "lastUpdateTime": ago(since),
                "lastTransitionTime": ago(since),
            }
        ]
    }


def test_a_rollout_without_progress_times_out_at_its_deadline() -> None:
    new = a_replica_set(replicas=3, present=3, available=0)
    waiting = {"replicas": 3, "updatedReplicas": 3, "unavailableReplicas": 3}
    for seconds, verdict in ((599, "ReplicaSetUpdated"), (601, "ProgressDeadlineExceeded")):
        status = {**waiting, **progressing("ReplicaSetUpdated", since=seconds)}
        deployment = a_deployment(3, status=status)
        made = plan_deployment(ObservedDeployment(deployment=deployment, sets=[new], now=NOW))
        found = deployment_status.find_condition(made.status, "Progressing")
        assert found is not None
        assert found.reason == verdict


def test_the_next_check_is_when_the_deadline_has_passed() -> None:
    status = progressing("ReplicaSetUpdated", since=100)
    deployment = a_deployment(3, status=status)
    wait = deployment_status.next_check(deployment, deployment.status, NOW)
    assert wait == 501.0
    late = NOW + dt.timedelta(hours=1)
    assert deployment_status.next_check(deployment, deployment.status, late) == 1.0


def test_a_finished_or_late_rollout_is_not_checked_again() -> None:
    for reason in ("ProgressDeadlineExceeded",):
        deployment = a_deployment(3, status=progressing(reason, since=1, status="False"))
        assert deployment_status.next_check(deployment, deployment.status, NOW) is None
    endless = a_deployment(3, progressDeadlineSeconds=2**31 - 1)
    assert deployment_status.next_check(endless, endless.status, NOW) is None


def test_a_paused_rollout_is_not_checked() -> None:
    paused = a_deployment(3, paused=True, status=progressing("ReplicaSetUpdated", since=700))
    assert deployment_status.next_check(paused, paused.status, NOW) is None


def test_progress_moves_the_update_time_and_not_the_transition() -> None:
    status = {"replicas": 1, **progressing("ReplicaSetUpdated", since=100)}
    deployment = a_deployment(3, status=status)
    new = a_replica_set(replicas=3, present=3, available=2)
    made = plan_deployment(ObservedDeployment(deployment=deployment, sets=[new], now=NOW))
    found = deployment_status.find_condition(made.status, "Progressing")
    assert found is not None
    assert (found.last_update_time, found.last_transition_time) == (ago(0), ago(100))


def test_a_status_that_is_right_stays_untouched() -> None:
    new = a_replica_set(replicas=3)
    deployment = a_deployment(3)
    for _ in range(3):
        made = plan_deployment(ObservedDeployment(deployment=deployment, sets=[new], now=NOW))
        deployment = msgspec.structs.replace(deployment, status=made.status)
    later = NOW + dt.timedelta(minutes=5)
    made = plan_deployment(ObservedDeployment(deployment=deployment, sets=[new], now=later))
    assert made.status == deployment.status
    assert not made.changes


def test_a_replica_sets_failure_shows_in_the_deployment() -> None:
    failing = msgspec.convert(
        {
            **msgspec.to_builtins(a_replica_set(present=0, available=0)),
            "status": {
                "replicas": 0,
                "observedGeneration": 1,
                "conditions": [
                    {
                        "type": "ReplicaFailure",
                        "status": "True",
                        "reason": "FailedCreate",
                        "message": "no room",
                    }
                ],
            },
        },
        type(a_replica_set()),
    )
    made = plan_deployment(ObservedDeployment(deployment=a_deployment(3), sets=[failing], now=NOW))
    found = deployment_status.find_condition(made.status, "ReplicaFailure")
    assert found is not None
    assert (found.reason, found.message) == ("FailedCreate", "no room")


def test_the_oldest_replica_set_of_a_template_is_the_new_one() -> None:
    older, newer = a_replica_set("web-b", age=50), a_replica_set("web-a", age=10)
    found = tell_apart(a_deployment(), [newer, older])
    assert found.new is older
    assert found.old == [newer]


def test_a_hash_label_does_not_make_another_template() -> None:
    body = new_replica_set(a_deployment(), 3, 1)
    item = msgspec.convert(
        {**body, "metadata": {**body["metadata"], "uid": "x"}}, type(a_replica_set())
    )
    assert tell_apart(a_deployment(), [item]).new is item


def test_a_template_that_returns_gets_the_next_number() -> None:
    item = a_replica_set(revision=2)
    assert wanted_annotations(a_deployment(), item, 5) == {REVISION: "5"}
    assert wanted_annotations(a_deployment(), item, 2) == {}


def test_what_kubectl_and_the_controller_note_is_not_copied() -> None:
    notes = {
        "kubectl.kubernetes.io/last-applied-configuration": "{}",
        REVISION: "9",
        "example.com/mine": "yes",
    }
    wanted = wanted_annotations(a_deployment(annotations=notes), a_replica_set(revision=1), 1)
    assert wanted == {"example.com/mine": "yes"}


def test_only_idle_replica_sets_beyond_the_limit_go() -> None:
    old = [
        a_replica_set("web-1", 0, revision=1),
        a_replica_set("web-2", 0, revision=2, present=1),
        a_replica_set("web-3", 0, revision=3),
        a_replica_set("web-4", 0, revision=4),
    ]
    deployment = a_deployment(revisionHistoryLimit=1)
    assert [item.metadata.name for item in surplus_history(deployment, old)] == ["web-1", "web-3"]
    assert surplus_history(a_deployment(), old) == []
