from __future__ import annotations

import dataclasses

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.controllers.builders import NOW, a_deployment, a_replica_set

from devkube.controllers.deployment_plan import DeploymentPlan, ObservedDeployment, plan_deployment
from devkube.controllers.deployment_rolling import (
    max_surge,
    max_unavailable,
    paused_size,
    scaled,
    shrink,
)
from devkube.controllers.objects import Deployment, ReplicaSet


@pytest.mark.parametrize(
    ("value", "up", "number"),
    [(3, True, 3), ("25%", True, 3), ("25%", False, 2), ("0%", True, 0), ("100%", False, 10)],
)
def test_percentages_round_up_or_down(value: int | str, up: bool, number: int) -> None:
    assert scaled(value, 10, round_up=up) == number


@pytest.mark.parametrize("value", ["ten", "10", "-5%", "%"])
def test_anything_but_a_number_or_percentage_is_named(value: str) -> None:
    with pytest.raises(ValueError, match="neither a whole number nor a percentage"):
        scaled(value, 10, round_up=True)


def test_surge_rounds_up_and_unavailable_down() -> None:
    spec = a_deployment(3, surge="25%", unavailable="25%").spec
    assert (max_surge(spec), max_unavailable(spec)) == (1, 0)


def test_without_any_room_one_pod_may_be_missing() -> None:
    spec = a_deployment(3, surge=0, unavailable="25%").spec
    assert (max_surge(spec), max_unavailable(spec)) == (0, 1)


def test_at_most_the_wanted_number_can_be_missing() -> None:
    assert max_unavailable(a_deployment(2, unavailable=5).spec) == 2
    assert max_unavailable(a_deployment(0, unavailable=5).spec) == 0


# A whole rollout, with pods that become available, break and go in any order.


@dataclasses.dataclass
class SimulatedRollout:
    """A Deployment whose plans are carried out at once, and pods that a test decides about."""

    deployment: Deployment
    sets: dict[str, ReplicaSet]

    def step(self) -> DeploymentPlan:
        made = plan_deployment(
            ObservedDeployment(deployment=self.deployment, sets=list(self.sets.values()), now=NOW)
        )
        if made.create is not None:
            number = len(self.sets) + 1
            image = made.create["spec"]["template"]["spec"]["containers"][0]["image"]
            name = made.create["metadata"]["name"]
            self.sets[name] = a_replica_set(
                name,
                made.create["spec"]["replicas"],
                image=image,
                present=0,
                available=0,
                revision=number,
                age=100 - number,
                annotations=made.create["metadata"]["annotations"],
            )
        for change in made.changes:
            self._change(change.target.metadata.name, change.replicas, change.annotations)
        self.deployment = msgspec.structs.replace(self.deployment, status=made.status)
        return made

    def _change(self, name: str, replicas: int | None, annotations: dict[str, str]) -> None:
        item = self.sets[name]
        merged = {**(item.metadata.annotations or {}), **annotations}
        metadata = msgspec.structs.replace(item.metadata, annotations=merged)
        spec = item.spec
        if replicas is not None:
            spec = msgspec.structs.replace(spec, replicas=replicas)
        self.sets[name] = msgspec.structs.replace(item, metadata=metadata, spec=spec)

    def live(self, name: str, change: int) -> None:
        """Pods come and go as the ReplicaSet is asked for; then some become available or break.

        As the real controller does, pods that are not available go first.
        """
        item = self.sets[name]
        present = item.spec.replicas
        available = max(0, min(present, item.status.available_replicas) + change)
        status = msgspec.structs.replace(
            item.status,
            replicas=present,
            ready_replicas=min(present, available),
            available_replicas=min(present, available),
        )
        self.sets[name] = msgspec.structs.replace(item, status=status)

    def set_image(self, image: str) -> None:
        template = {
            "metadata": {"labels": {"app": "web"}},
            "spec": {"containers": [{"name": "web", "image": image}]},
        }
        spec = msgspec.structs.replace(self.deployment.spec, template=template)
        meta = self.deployment.metadata
        metadata = msgspec.structs.replace(meta, generation=meta.generation + 1)
        self.deployment = msgspec.structs.replace(self.deployment, spec=spec, metadata=metadata)

    @property
    def asked(self) -> int:
        return sum(item.spec.replicas for item in self.sets.values())

    @property
    def available(self) -> int:
        return sum(item.status.available_replicas for item in self.sets.values())

    @property
    def kept_available(self) -> int:
        """The available pods that nobody is asked to delete."""
        return sum(
            min(item.spec.replicas, item.status.available_replicas) for item in self.sets.values()
        )


amounts = st.one_of(st.integers(0, 12), st.integers(0, 100).map(lambda n: f"{n}%"))


@given(replicas=st.integers(0, 12), surge=amounts, unavailable=amounts, data=st.data())
def test_a_rollout_stays_within_its_bounds_and_ends(
    replicas: int, surge: int | str, unavailable: int | str, data: st.DataObject
) -> None:
    rollout = SimulatedRollout(a_deployment(replicas, surge=surge, unavailable=unavailable), {})
    run_to_the_end(rollout)
    spec = rollout.deployment.spec
    most = replicas + max_surge(spec)
    least = replicas - max_unavailable(spec)
    for image in ("web:2", "web:3", "web:1"):
        rollout.set_image(image)
        for _ in range(data.draw(st.integers(0, 8))):
            before = rollout.available
            rollout.step()
            assert rollout.asked <= most
            # What is planned never takes more than may be missing; what was missing already is
            # not the plan's fault.
            assert rollout.kept_available >= min(least, before)
            for name in list(rollout.sets):
                rollout.live(name, data.draw(st.integers(-1, 3)))
    run_to_the_end(rollout)
    left = [item for item in rollout.sets.values() if item.spec.replicas]
    assert [item.spec.replicas for item in left] == ([replicas] if replicas else [])
    assert all(item.spec.template == rollout.deployment.spec.template for item in left)


def run_to_the_end(rollout: SimulatedRollout) -> None:
    for _ in range(200):
        made = rollout.step()
        for name in list(rollout.sets):
            rollout.live(name, 100)
        if made.create is None and not made.changes and _is_complete(rollout):
            return
    raise AssertionError("the rollout does not end")


def _is_complete(rollout: SimulatedRollout) -> bool:
    conditions = {c.type: c.reason for c in rollout.deployment.status.conditions or ()}
    return conditions.get("Progressing") == "NewReplicaSetAvailable"


@given(data=st.data(), before=st.integers(0, 12), after=st.integers(0, 12))
def test_a_deployment_scaled_during_a_rollout_ends_at_the_new_size(
    data: st.DataObject, before: int, after: int
) -> None:
    old = a_replica_set("web-old", before, image="web:0")
    rollout = SimulatedRollout(a_deployment(before, surge=2), {"web-old": old})
    for _ in range(data.draw(st.integers(0, 4))):
        rollout.step()
        for name in list(rollout.sets):
            rollout.live(name, data.draw(st.integers(-1, 3)))
    spec = msgspec.structs.replace(rollout.deployment.spec, replicas=after)
    rollout.deployment = msgspec.structs.replace(rollout.deployment, spec=spec)
    run_to_the_end(rollout)
    assert rollout.asked == after


def test_a_paused_deployment_can_be_scaled_but_not_rolled() -> None:
    paused = a_deployment(5)
    old, new = a_replica_set("web-old", 3, image="web:0"), a_replica_set("web-new", 2, age=1)
    assert paused_size(paused, None, [old]) == {"web-old": 5}
    assert paused_size(paused, new, [old]) == {}
    assert paused_size(paused, None, []) == {}


def test_new_pods_that_are_not_available_save_the_old_ones() -> None:
    """Ten wanted, two may be missing, three more allowed: the new five do not start.

    One of the old eight breaks. It stays: with five missing there is nothing to spare.
    """
    old = a_replica_set("web-old", 8, image="web:0", available=7)
    new = a_replica_set("web-new", 5, available=0, age=1)
    assert shrink(a_deployment(10, surge=3, unavailable=2), new, [old]) == {}
    # Rolled back, the five can go.
    back = a_replica_set("web-new", 5, image="web:0", available=0, age=1)
    good = a_replica_set("web-old", 8, available=7)
    assert shrink(a_deployment(10, surge=3, unavailable=2), good, [back]) == {"web-new": 1}
