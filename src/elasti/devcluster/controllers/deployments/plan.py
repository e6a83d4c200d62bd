"""What a Deployment needs next. Pure.

A rollout is a sequence of small steps, and each is planned anew from what the cluster shows: the
next step waits until the last one can be seen. So a crash between steps costs nothing.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from elasti.devcluster.controllers.deployments import progress, rolling
from elasti.devcluster.controllers.deployments.bounds import new_size, total
from elasti.devcluster.controllers.deployments.revisions import (
    REVISION,
    new_replica_set,
    revision_of,
    size_annotations,
    surplus_history,
    tell_apart,
    wanted_annotations,
)

if TYPE_CHECKING:
    import datetime as dt

    from elasti.devcluster.controllers.deployments.revisions import Generations
    from elasti.devcluster.controllers.workloads import (
        Deployment,
        DeploymentStatus,
        ReplicaSet,
    )
    from kubeloop.objects.meta import JsonObject


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """A Deployment, the ReplicaSets it owns, and whether pods of old ones still run."""

    deployment: Deployment
    sets: list[ReplicaSet]
    old_pods_running: bool = False
    now: dt.datetime


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A change of one ReplicaSet."""

    target: ReplicaSet
    replicas: int | None = None
    annotations: dict[str, str] = dataclasses.field(default_factory=dict)
    min_ready_seconds: int | None = None

    @property
    def is_empty(self) -> bool:
        """Whether it changes nothing."""
        return self.replicas is None and not self.annotations and self.min_ready_seconds is None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to write, in this order: ReplicaSets, then the Deployment's status and revision."""

    create: JsonObject | None = None
    changes: tuple[Change, ...] = ()
    remove: tuple[ReplicaSet, ...] = ()
    status: DeploymentStatus
    revision: str | None = None


def plan(observed: Observed) -> Plan:
    """Return the next step."""
    deployment = observed.deployment
    sets = tell_apart(deployment, observed.sets)
    if deployment.metadata.deletion_timestamp is not None:
        status = progress.counted(deployment, deployment.status, sets, observed.now)
        return Plan(status=status)
    if deployment.spec.paused or rolling.was_resized(deployment, sets.all):
        return _resize(observed, sets)
    if deployment.spec.strategy.type == "Recreate":
        return _recreate(observed, sets)
    return _roll(observed, sets)


def _resize(observed: Observed, sets: Generations) -> Plan:
    deployment = observed.deployment
    sizes = rolling.resize(deployment, sets.new, sets.old)
    base = progress.paused_or_resumed(deployment, observed.now)
    return Plan(
        # Every active ReplicaSet is to know the new number, or the resize would never end.
        changes=_changes(deployment, sets, sizes, note_size=rolling.active(sets.all)),
        remove=tuple(surplus_history(deployment, sets.old)) if deployment.spec.paused else (),
        status=progress.counted(deployment, base, sets, observed.now),
        revision=_revision(sets),
    )


def _recreate(observed: Observed, sets: Generations) -> Plan:
    deployment = observed.deployment
    if sizes := rolling.all_to_zero(sets.old):
        return _step(observed, sets, sizes)
    if observed.old_pods_running or any(item.status.replicas for item in sets.old):
        return _step(observed, sets, {})
    if sets.new is None:
        return _create(observed, sets, deployment.spec.replicas)
    wanted = deployment.spec.replicas
    resized = {sets.new.metadata.name: wanted} if sets.new.spec.replicas != wanted else {}
    return _step(observed, sets, resized, clean=True)


def _roll(observed: Observed, sets: Generations) -> Plan:
    deployment = observed.deployment
    if sets.new is None:
        return _create(observed, sets, new_size(deployment.spec, 0, total(sets.old)))
    sizes = rolling.grow(deployment, sets.new, sets.old)
    if not sizes:
        sizes = rolling.shrink(deployment, sets.new, sets.old)
    return _step(observed, sets, sizes, clean=not sizes)


def _create(observed: Observed, sets: Generations, replicas: int) -> Plan:
    deployment, revision = observed.deployment, sets.next_revision
    body = new_replica_set(deployment, replicas, revision)
    base = progress.paused_or_resumed(deployment, observed.now)
    counted = progress.counted(deployment, base, sets, observed.now)
    name = body["metadata"]["name"]
    return Plan(
        create=body,
        status=progress.created(deployment, counted, name, observed.now),
        revision=str(revision),
    )


def _step(
    observed: Observed, sets: Generations, sizes: rolling.Sizes, *, clean: bool = False
) -> Plan:
    deployment, now = observed.deployment, observed.now
    base = progress.paused_or_resumed(deployment, now)
    if sets.new is not None:
        base = progress.found(deployment, base, sets.new.metadata.name, now)
    counted = progress.counted(deployment, base, sets, now)
    complete = progress.is_complete(deployment, deployment.status)
    return Plan(
        changes=_changes(deployment, sets, sizes),
        remove=tuple(surplus_history(deployment, sets.old)) if clean and complete else (),
        status=progress.judged(deployment, counted, sets, now),
        revision=_revision(sets),
    )


def _changes(
    deployment: Deployment,
    sets: Generations,
    sizes: rolling.Sizes,
    *,
    note_size: list[ReplicaSet] | None = None,
) -> tuple[Change, ...]:
    changes = []
    for item in sets.all:
        size = sizes.get(item.metadata.name)
        annotations: dict[str, str] = {}
        min_ready = None
        if item is sets.new:
            annotations = wanted_annotations(deployment, item, sets.next_revision)
            wanted = deployment.spec.min_ready_seconds
            min_ready = wanted if item.spec.min_ready_seconds != wanted else None
        if size is not None or item in (note_size or ()):
            annotations |= _missing(size_annotations(deployment), item)
        size = size if size != item.spec.replicas else None
        changes.append(
            Change(
                target=item,
                replicas=size,
                annotations=annotations,
                min_ready_seconds=min_ready,
            )
        )
    return tuple(change for change in changes if not change.is_empty)


def _missing(wanted: dict[str, str], item: ReplicaSet) -> dict[str, str]:
    present = item.metadata.annotations or {}
    return {name: text for name, text in wanted.items() if present.get(name) != text}


def _revision(sets: Generations) -> str | None:
    """Return the Deployment's revision; None while the present template has no ReplicaSet."""
    if sets.new is None:
        return None
    if revision_of(sets.new) < sets.next_revision:
        return str(sets.next_revision)
    return (sets.new.metadata.annotations or {}).get(REVISION)
