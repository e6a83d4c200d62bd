from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.controllers.builders import NOW, a_pod, a_replica_set

from devkube.controllers.objects import (
    NodeSpec,
    NodeStatus,
    SlimNode,
    WorkloadCondition,
    next_availability,
)
from devkube.controllers.pod_control import Tombstones, claim
from devkube.controllers.replica_set import BURST, count_status, plan_replica_set, victims
from devkube.controllers.scheduler import place
from kubeloop.objects.meta import ObjectMeta
from kubeloop.objects.selectors import LabelSelector

PAIRS = [
    ("without a node", a_pod("b", node=""), a_pod("a")),
    ("pending", a_pod("b", phase="Pending"), a_pod("a")),
    ("not ready", a_pod("b", ready=False), a_pod("a")),
    (
        "cheaper",
        a_pod("b", annotations={"controller.kubernetes.io/pod-deletion-cost": "-1"}),
        a_pod("a"),
    ),
    ("younger", a_pod("b", age=5), a_pod("a", age=5000)),
]


@pytest.mark.parametrize(("why", "first", "second"), PAIRS, ids=[why for why, *_ in PAIRS])
def test_of_two_pods_the_one_goes_that_is(why: str, first: object, second: object) -> None:
    assert victims([second, first], []) == [first, second]  # type: ignore[list-item]
    assert victims([first, second], []) == [first, second]  # type: ignore[list-item]


def test_a_pod_on_a_fuller_node_goes_first() -> None:
    lone, crowded = a_pod("a", node="one"), a_pod("b", node="two")
    neighbours = [a_pod(f"n{i}", node="two") for i in range(3)]
    assert victims([lone, crowded], [lone, crowded, *neighbours]) == [crowded, lone]


def test_readiness_counts_before_everything_that_follows_it() -> None:
    broken = a_pod(
        "a", ready=False, annotations={"controller.kubernetes.io/pod-deletion-cost": "9"}
    )
    assert victims([a_pod("b", ready_for=1), broken], [])[0] is broken


@given(wanted=st.integers(0, 20), present=st.integers(0, 20), seed=st.integers())
def test_a_plan_brings_the_wanted_number(wanted: int, present: int, seed: int) -> None:
    pods = [a_pod(f"p{i}", ready=i % 3 > 0) for i in range(present)]
    random.Random(seed).shuffle(pods)
    made = plan_replica_set(wanted, pods, related=pods)
    assert present + made.create - len(made.delete) == wanted
    assert not (made.create and made.delete)
    kept = [pod for pod in pods if pod not in made.delete]
    if any(pod.is_ready for pod in made.delete):
        assert all(pod.is_ready for pod in kept)


def test_a_step_never_makes_more_than_the_burst() -> None:
    assert plan_replica_set(10_000, [], related=[]).create == BURST


def test_pods_are_claimed_adopted_and_released_by_labels_and_controller() -> None:
    owner = a_replica_set("web")
    mine = a_pod("mine", labels={"app": "web"}, owner="uid-web")
    strayed = a_pod("strayed", labels={"app": "no"}, owner="uid-web")
    orphan = a_pod("orphan", labels={"app": "web"})
    ending = a_pod("ending", labels={"app": "web"}, deleting=True)
    others = a_pod("others", labels={"app": "web"}, owner="uid-other")
    unrelated = a_pod("unrelated", labels={"app": "no"})
    selector = LabelSelector.parse("app=web")
    found = claim(owner, selector, [mine, strayed, orphan, ending, others, unrelated])
    assert (found.owned, found.adopt, found.release) == ((mine,), (orphan,), (strayed,))


def test_an_owner_that_is_going_neither_adopts_nor_releases() -> None:
    owner = a_replica_set("web")
    owner.metadata.deletion_timestamp = "2030-01-01T00:00:00Z"
    pods = [
        a_pod("mine", labels={"app": "web"}, owner="uid-web"),
        a_pod("strayed", labels={"app": "no"}, owner="uid-web"),
        a_pod("orphan", labels={"app": "web"}),
    ]
    found = claim(owner, LabelSelector.parse("app=web"), pods)
    assert (found.owned, found.adopt, found.release) == ((pods[0],), (), ())


def test_a_deleted_pod_is_dead_until_the_cache_knows() -> None:
    tombstones = Tombstones()
    pod = a_pod("one")
    tombstones.add("owner", pod.metadata.uid)
    assert tombstones.living("owner", [pod]) == []
    assert tombstones.living("other", [pod]) == [pod]
    ending = a_pod("one", deleting=True)
    assert tombstones.living("owner", [ending]) == [ending]
    assert not tombstones.by_owner


def test_a_status_counts_ready_and_available_pods() -> None:
    pods = [a_pod("a", ready_for=100), a_pod("b", ready_for=5), a_pod("c", ready=False)]
    item = a_replica_set(replicas=3)
    slow = type(item.spec)(replicas=3, min_ready_seconds=10, template=item.spec.template)
    item = type(item)(item.metadata, slow, item.status)
    status = count_status(item, pods, failure=None, now=NOW)
    counts = (status.replicas, status.ready_replicas, status.available_replicas)
    assert counts == (3, 2, 1)
    assert status.fully_labeled_replicas == 0
    assert next_availability(pods, 10, NOW) == 5.0


def test_a_failure_is_noted_once_and_taken_back() -> None:
    item = a_replica_set(replicas=3)
    failed = count_status(item, [], failure="no room", now=NOW)
    (condition,) = failed.conditions or ()
    assert (condition.type, condition.reason) == ("ReplicaFailure", "FailedCreate")
    item = type(item)(item.metadata, item.spec, failed)
    again = count_status(item, [], failure="still no room", now=NOW)
    assert again.conditions == failed.conditions
    mended = count_status(item, [], failure=None, now=NOW)
    assert mended.conditions is None


# Nodes


def a_node(name: str, *, ready: bool = True, **spec: object) -> SlimNode:
    condition = WorkloadCondition(type="Ready", status="True" if ready else "False")
    meta = ObjectMeta(name=name, labels={"zone": name})
    status = NodeStatus(conditions=(condition,), allocatable={"pods": "2"})
    return SlimNode(meta, NodeSpec(**spec), status)  # type: ignore[arg-type]


def test_the_emptiest_node_is_chosen() -> None:
    nodes = [a_node("a"), a_node("b")]
    assert place(a_pod(node=""), nodes, {"a": 1}).node == "b"
    assert place(a_pod(node=""), nodes, {}).node == "a"


def test_the_message_counts_why_each_node_does_not_fit() -> None:
    nodes = [a_node("full"), a_node("down", ready=False), a_node("closed", unschedulable=True)]
    found = place(a_pod(node=""), nodes, {"full": 2})
    assert found.node == ""
    assert found.message == (
        "0/3 nodes are available: 1 Too many pods, 1 node(s) were not ready,"
        " 1 node(s) were unschedulable."
    )
    assert place(a_pod(node=""), [], {}).message == "no nodes available to schedule pods"
