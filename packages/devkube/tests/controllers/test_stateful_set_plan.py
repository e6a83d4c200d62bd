from __future__ import annotations

import dataclasses
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from tests.controllers.builders import NOW, a_pod, a_stateful_set, a_template

from devkube.controllers.objects import ControllerRevision, SlimPod, StatefulSet
from devkube.controllers.stateful_set_plan import (
    REVISION_LABEL,
    ObservedStatefulSet,
    RevisionHistory,
    TemplateRevision,
    count_status,
    new_revision,
    ordinal_of,
    plan_stateful_set,
    pod_of,
    read_history,
    revision_of,
    surplus,
)
from kubeloop.objects.meta import ObjectMeta

OLD, NEW = (
    TemplateRevision("db-old", a_template("web:1")),
    TemplateRevision("db-new", a_template("web:2")),
)


def a_member(number: int, revision: str = "db-new", **options: Any) -> SlimPod:
    return a_pod(f"db-{number}", labels={REVISION_LABEL: revision}, **options)


def observed(
    stateful_set: StatefulSet,
    pods: list[SlimPod],
    *,
    current: TemplateRevision = OLD,
    update: TemplateRevision = NEW,
) -> ObservedStatefulSet:
    history = RevisionHistory(current=current, update=update)
    return ObservedStatefulSet(stateful_set=stateful_set, pods=pods, history=history, now=NOW)


def numbers(seen: ObservedStatefulSet) -> tuple[list[int], list[str]]:
    plan = plan_stateful_set(seen)
    return [number for number, _ in plan.create], [pod.metadata.name for pod in plan.delete]


def test_the_first_missing_pod_is_made_and_nothing_else() -> None:
    assert numbers(observed(a_stateful_set(3), [])) == ([0], [])
    assert numbers(observed(a_stateful_set(3), [a_member(0), a_member(2)])) == ([1], [])


def test_a_pod_that_is_not_available_holds_up_the_next() -> None:
    assert numbers(observed(a_stateful_set(3), [a_member(0, ready=False)])) == ([], [])
    assert numbers(observed(a_stateful_set(3), [a_member(0, deleting=True)])) == ([], [])
    slow = a_stateful_set(3, minReadySeconds=1000)
    assert numbers(observed(slow, [a_member(0, ready_for=10)])) == ([], [])


def test_a_failed_pod_is_deleted_to_be_made_again() -> None:
    assert numbers(observed(a_stateful_set(2), [a_member(0, phase="Failed")])) == ([], ["db-0"])


def test_parallel_makes_and_deletes_all_at_once() -> None:
    grown = a_stateful_set(3, podManagementPolicy="Parallel")
    assert numbers(observed(grown, [a_member(1, ready=False)])) == ([0, 2], [])
    shrunk = a_stateful_set(1, podManagementPolicy="Parallel")
    assert numbers(observed(shrunk, [a_member(n) for n in range(4)])) == (
        [],
        ["db-3", "db-2", "db-1"],
    )


def test_pods_beyond_the_number_go_from_the_highest_one_at_a_time() -> None:
    assert numbers(observed(a_stateful_set(1), [a_member(n) for n in range(3)])) == ([], ["db-2"])
    going = [a_member(0), a_member(1), a_member(2, deleting=True)]
    assert numbers(observed(a_stateful_set(1), going)) == ([], [])


def test_new_pods_below_the_partition_are_old() -> None:
    rolling = {"type": "RollingUpdate", "rollingUpdate": {"partition": 1}}
    seen = observed(a_stateful_set(2, updateStrategy=rolling), [])
    assert [revision for _, revision in plan_stateful_set(seen).create] == [OLD]
    seen = observed(a_stateful_set(2, updateStrategy=rolling), [a_member(0, "db-old")])
    assert [revision for _, revision in plan_stateful_set(seen).create] == [NEW]


@dataclasses.dataclass
class SimulatedPods:
    """Pods that follow the plans."""

    stateful_set: StatefulSet
    pods: dict[int, SlimPod]

    def step(self) -> bool:
        seen = observed(self.stateful_set, list(self.pods.values()))
        plan = plan_stateful_set(seen)
        for number, revision in plan.create:
            assert number not in self.pods
            self.pods[number] = a_member(number, revision.name, ready=False)
        for pod in plan.delete:
            self.pods[ordinal_of(self.stateful_set, pod)] = a_member(
                ordinal_of(self.stateful_set, pod), revision_of(pod), deleting=True
            )
        return bool(plan.create or plan.delete)

    def live(self, number: int) -> None:
        pod = self.pods.get(number)
        if pod is None:
            return
        if pod.is_deleting:
            del self.pods[number]
        else:
            self.pods[number] = a_member(number, revision_of(pod), ready=True)


@given(
    wanted=st.integers(0, 6),
    partition=st.integers(0, 7),
    ordered=st.booleans(),
    start=st.dictionaries(st.integers(0, 8), st.booleans(), max_size=6),
    order=st.lists(st.integers(0, 8), max_size=40),
)
def test_every_start_ends_with_the_right_pods(
    wanted: int, partition: int, ordered: bool, start: dict[int, bool], order: list[int]
) -> None:
    stateful_set = a_stateful_set(
        wanted,
        podManagementPolicy="OrderedReady" if ordered else "Parallel",
        updateStrategy={"type": "RollingUpdate", "rollingUpdate": {"partition": partition}},
    )
    pods = {n: a_member(n, "db-old", ready=ready) for n, ready in start.items()}
    simulated = SimulatedPods(stateful_set, pods)
    for number in order:
        missing = _missing(simulated)
        simulated.step()
        # An update, or a scale-down in order, takes one pod at a time.
        if ordered:
            assert _missing(simulated) <= missing + 1
        simulated.live(number)
    for _ in range(100):
        simulated.step()
        for number in list(simulated.pods):
            simulated.live(number)
    assert sorted(simulated.pods) == list(range(wanted))
    for number, pod in simulated.pods.items():
        if number >= partition:
            assert revision_of(pod) == "db-new"
        elif start.get(number):
            assert revision_of(pod) == "db-old"


def _missing(simulated: SimulatedPods) -> int:
    return sum(pod.is_deleting for pod in simulated.pods.values())


def test_a_finished_update_makes_the_new_revision_current() -> None:
    seen = observed(a_stateful_set(2), [a_member(0), a_member(1)])
    status = count_status(seen)
    assert (status.current_revision, status.update_revision) == ("db-new", "db-new")
    assert (status.current_replicas, status.updated_replicas) == (2, 2)
    half = count_status(observed(a_stateful_set(2), [a_member(0, "db-old"), a_member(1)]))
    assert (half.current_revision, half.update_revision) == ("db-old", "db-new")
    assert (half.current_replicas, half.updated_replicas) == (1, 1)


def remembered(image: str, number: int, name: str) -> ControllerRevision:
    made = new_revision(a_stateful_set(image=image), number)
    meta = ObjectMeta(name=name, uid=name)
    return msgspec.convert({**made, "metadata": msgspec.to_builtins(meta)}, ControllerRevision)


def test_a_new_template_is_a_new_revision() -> None:
    history = read_history(a_stateful_set(image="web:2"), [remembered("web:1", 1, "db-1")])
    assert history.create is not None
    assert history.create["revision"] == 2
    assert history.update.name == history.create["metadata"]["name"]


def test_an_old_template_gets_the_highest_number_again() -> None:
    known = [remembered("web:1", 1, "db-1"), remembered("web:2", 2, "db-2")]
    history = read_history(a_stateful_set(image="web:1"), known)
    assert history.create is None
    assert history.renumber == (known[0], 3)
    assert read_history(a_stateful_set(image="web:2"), known).renumber is None


def test_revisions_in_use_are_kept_beyond_the_limit() -> None:
    known = [remembered(f"web:{n}", n, f"db-{n}") for n in range(1, 6)]
    stateful_set = a_stateful_set(image="web:5", revisionHistoryLimit=1)
    history = read_history(stateful_set, known)
    pods = [a_member(0, "db-1")]
    gone = surplus(stateful_set, known, pods, history)
    assert [found.metadata.name for found in gone] == ["db-2", "db-3"]


def test_a_pod_carries_its_identity() -> None:
    pod = pod_of(a_stateful_set(serviceName="peers"), 2, template=NEW.template, revision="db-new")
    assert pod["metadata"]["name"] == "db-2"
    assert pod["metadata"]["labels"]["controller-revision-hash"] == "db-new"
    assert (pod["spec"]["hostname"], pod["spec"]["subdomain"]) == ("db-2", "peers")
    assert NEW.template["metadata"]["labels"] == {"app": "web"}
