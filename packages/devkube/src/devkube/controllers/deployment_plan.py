"""The next step of a Deployment. Pure.

A rollout is a sequence of small steps, and each is planned from what the cluster shows: the next step
waits until the last one can be seen. So a crash between steps costs nothing. The ReplicaSet of the present
template is found by its template; numbered revisions count the history.
"""

from __future__ import annotations

import dataclasses
import datetime as dt

import msgspec

from devkube.controllers import deployment_rolling, deployment_status, objects
from devkube.controllers.deployment_rolling import new_size, oldest_first, total
from devkube.controllers.objects import (
    DEPLOYMENT,
    TEMPLATE_HASH,
    Deployment,
    DeploymentStatus,
    ReplicaSet,
)
from devkube.controllers.pod_control import controller_reference
from kubeloop.objects.meta import JsonObject

REVISION = "deployment.kubernetes.io/revision"
_NOT_COPIED = ("kubectl.kubernetes.io/last-applied-configuration", REVISION)
_LONGEST_NAME = 253


@dataclasses.dataclass(frozen=True, slots=True)
class ReplicaSetGenerations:
    """The ReplicaSet of the present template, if there is one, and all others."""

    new: ReplicaSet | None
    old: list[ReplicaSet]

    @property
    def all(self) -> list[ReplicaSet]:
        """All ReplicaSets."""
        return self.old if self.new is None else [*self.old, self.new]

    @property
    def next_revision(self) -> int:
        """The number of the present template: one more than any other's."""
        return max((revision_of(item) for item in self.old), default=0) + 1


def tell_apart(deployment: Deployment, sets: list[ReplicaSet]) -> ReplicaSetGenerations:
    """Find the ReplicaSet of the present template: the oldest, should there be several."""
    template = deployment.spec.template
    matching = (s for s in oldest_first(sets) if objects.same_template(s.spec.template, template))
    new = next(matching, None)
    return ReplicaSetGenerations(new, [item for item in sets if item is not new])


def revision_of(item: ReplicaSet) -> int:
    """Return a ReplicaSet's revision, 0 if it has no such annotation."""
    text = (item.metadata.annotations or {}).get(REVISION, "")
    return int(text) if text.isdecimal() else 0


def wanted_annotations(deployment: Deployment, item: ReplicaSet, revision: int) -> dict[str, str]:
    """Return the annotations that the present ReplicaSet lacks or has otherwise.

    The Deployment's own are copied. A revision only rises: then an old template is in use again.
    """
    present = item.metadata.annotations or {}
    wanted = _copied(deployment)
    if revision_of(item) < revision:
        wanted[REVISION] = str(revision)
    return {name: text for name, text in wanted.items() if present.get(name) != text}


def _copied(deployment: Deployment) -> dict[str, str]:
    annotations = deployment.metadata.annotations or {}
    return {name: text for name, text in annotations.items() if name not in _NOT_COPIED}


def new_replica_set(deployment: Deployment, replicas: int, revision: int) -> JsonObject:
    """Return the ReplicaSet of the present template, to create."""
    spec, meta = deployment.spec, deployment.metadata
    digest = objects.hash_of(spec.template)
    template = objects.with_label(spec.template, TEMPLATE_HASH, digest)
    selector = spec.selector or {}
    labels = {**(selector.get("matchLabels") or {}), TEMPLATE_HASH: digest}
    reference = controller_reference(deployment, DEPLOYMENT)
    return {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "metadata": {
            "name": f"{meta.name[: _LONGEST_NAME - len(digest) - 1]}-{digest}",
            "namespace": meta.namespace,
            "labels": template["metadata"]["labels"],
            "annotations": {**_copied(deployment), REVISION: str(revision)},
            "ownerReferences": [msgspec.to_builtins(reference)],
        },
        "spec": {
            "replicas": replicas,
            "minReadySeconds": spec.min_ready_seconds,
            "selector": {**selector, "matchLabels": labels},
            "template": template,
        },
    }


def surplus_history(deployment: Deployment, old: list[ReplicaSet]) -> list[ReplicaSet]:
    """Return the old ReplicaSets that may go: beyond the history's limit, and without pods."""
    limit = deployment.spec.revision_history_limit
    if limit is None:
        return []
    living = [item for item in old if item.metadata.deletion_timestamp is None]
    beyond = sorted(living, key=revision_of)[: max(0, len(living) - limit)]
    return [item for item in beyond if _is_idle(item)]


def _is_idle(item: ReplicaSet) -> bool:
    seen = item.status.observed_generation >= item.metadata.generation
    return seen and item.status.replicas == 0 and item.spec.replicas == 0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ObservedDeployment:
    """A Deployment, the ReplicaSets it owns, and whether pods of old ones still run."""

    deployment: Deployment
    sets: list[ReplicaSet]
    old_pods_running: bool = False
    now: dt.datetime


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaSetChange:
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
class DeploymentPlan:
    """The writes, in this order: ReplicaSets, then the Deployment's status and revision."""

    create: JsonObject | None = None
    changes: tuple[ReplicaSetChange, ...] = ()
    remove: tuple[ReplicaSet, ...] = ()
    status: DeploymentStatus
    revision: str | None = None


def plan_deployment(observed: ObservedDeployment) -> DeploymentPlan:
    """Return the next step."""
    deployment = observed.deployment
    sets = tell_apart(deployment, observed.sets)
    if deployment.metadata.deletion_timestamp is not None:
        status = deployment_status.counted(deployment, deployment.status, sets, observed.now)
        return DeploymentPlan(status=status)
    if deployment.spec.paused:
        return _pause(observed, sets)
    if deployment.spec.strategy.type == "Recreate":
        return _recreate(observed, sets)
    return _roll(observed, sets)


def _pause(observed: ObservedDeployment, sets: ReplicaSetGenerations) -> DeploymentPlan:
    deployment = observed.deployment
    return DeploymentPlan(
        changes=_changes(
            deployment, sets, deployment_rolling.paused_size(deployment, sets.new, sets.old)
        ),
        remove=tuple(surplus_history(deployment, sets.old)),
        status=deployment_status.counted(deployment, deployment.status, sets, observed.now),
        revision=_revision(sets),
    )


def _recreate(observed: ObservedDeployment, sets: ReplicaSetGenerations) -> DeploymentPlan:
    deployment = observed.deployment
    if sizes := deployment_rolling.all_to_zero(sets.old):
        return _step(observed, sets, sizes)
    if observed.old_pods_running or any(item.status.replicas for item in sets.old):
        return _step(observed, sets, {})
    if sets.new is None:
        return _create(observed, sets, deployment.spec.replicas)
    wanted = deployment.spec.replicas
    resized = {sets.new.metadata.name: wanted} if sets.new.spec.replicas != wanted else {}
    return _step(observed, sets, resized, clean=True)


def _roll(observed: ObservedDeployment, sets: ReplicaSetGenerations) -> DeploymentPlan:
    deployment = observed.deployment
    if sets.new is None:
        return _create(observed, sets, new_size(deployment.spec, 0, total(sets.old)))
    sizes = deployment_rolling.grow(deployment, sets.new, sets.old)
    if not sizes:
        sizes = deployment_rolling.shrink(deployment, sets.new, sets.old)
    return _step(observed, sets, sizes, clean=not sizes)


def _create(
    observed: ObservedDeployment, sets: ReplicaSetGenerations, replicas: int
) -> DeploymentPlan:
    deployment, revision = observed.deployment, sets.next_revision
    body = new_replica_set(deployment, replicas, revision)
    status = deployment_status.counted(deployment, deployment.status, sets, observed.now)
    message = f'Created new replica set "{body["metadata"]["name"]}"'
    if deployment_status.has_deadline(deployment):
        status = deployment_status.with_condition(
            status, "Progressing", "True", "NewReplicaSetCreated", message, now=observed.now
        )
    return DeploymentPlan(create=body, status=status, revision=str(revision))


def _step(
    observed: ObservedDeployment,
    sets: ReplicaSetGenerations,
    sizes: deployment_rolling.Sizes,
    *,
    clean: bool = False,
) -> DeploymentPlan:
    deployment, now = observed.deployment, observed.now
    counted = deployment_status.counted(deployment, deployment.status, sets, now)
    complete = deployment_status.is_complete(deployment, deployment.status)
    return DeploymentPlan(
        changes=_changes(deployment, sets, sizes),
        remove=tuple(surplus_history(deployment, sets.old)) if clean and complete else (),
        status=deployment_status.judged(deployment, counted, sets, now),
        revision=_revision(sets),
    )


def _changes(
    deployment: Deployment, sets: ReplicaSetGenerations, sizes: deployment_rolling.Sizes
) -> tuple[ReplicaSetChange, ...]:
    changes = []
    for item in sets.all:
        size = sizes.get(item.metadata.name)
        change = ReplicaSetChange(target=item, replicas=size)
        if item is sets.new:
            wanted = deployment.spec.min_ready_seconds
            change = ReplicaSetChange(
                target=item,
                replicas=size,
                annotations=wanted_annotations(deployment, item, sets.next_revision),
                min_ready_seconds=wanted if item.spec.min_ready_seconds != wanted else None,
            )
        if not change.is_empty:
            changes.append(change)
    return tuple(changes)


def _revision(sets: ReplicaSetGenerations) -> str | None:
    """Return the Deployment's revision; None while the present template has no ReplicaSet."""
    if sets.new is None:
        return None
    if revision_of(sets.new) < sets.next_revision:
        return str(sets.next_revision)
    return (sets.new.metadata.annotations or {}).get(REVISION)
