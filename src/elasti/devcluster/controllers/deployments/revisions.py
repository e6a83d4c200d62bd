"""Which ReplicaSet is the Deployment's present one, and the numbers that count its history. Pure."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import msgspec

from elasti.devcluster.controllers import templates
from elasti.devcluster.controllers.deployments.bounds import max_surge
from elasti.devcluster.controllers.deployments.rolling import DESIRED, MAXIMUM, oldest_first
from elasti.devcluster.controllers.pod_control import controller_reference
from elasti.devcluster.controllers.templates import TEMPLATE_HASH
from elasti.devcluster.controllers.workloads import DEPLOYMENT

if TYPE_CHECKING:
    from elasti.devcluster.controllers.workloads import Deployment, ReplicaSet
    from kubeloop.objects.meta import JsonObject

REVISION = "deployment.kubernetes.io/revision"
HISTORY = "deployment.kubernetes.io/revision-history"
_NOT_COPIED = frozenset(
    {
        "kubectl.kubernetes.io/last-applied-configuration",
        REVISION,
        HISTORY,
        DESIRED,
        MAXIMUM,
        "deprecated.deployment.rollback.to",
    }
)
_LONGEST_HISTORY = 2000
_LONGEST_NAME = 253


@dataclasses.dataclass(frozen=True, slots=True)
class Generations:
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


def tell_apart(deployment: Deployment, sets: list[ReplicaSet]) -> Generations:
    """Find the ReplicaSet of the present template: the oldest, should there be several."""
    template = deployment.spec.template
    matching = (s for s in oldest_first(sets) if templates.same_template(s.spec.template, template))
    new = next(matching, None)
    return Generations(new, [item for item in sets if item is not new])


def revision_of(item: ReplicaSet) -> int:
    """Return a ReplicaSet's revision, 0 where it has none."""
    text = (item.metadata.annotations or {}).get(REVISION, "")
    return int(text) if text.isdecimal() else 0


def wanted_annotations(deployment: Deployment, item: ReplicaSet, revision: int) -> dict[str, str]:
    """Return the annotations that the present ReplicaSet lacks or has otherwise.

    The Deployment's own are copied. A revision only rises; when it does, the old number joins the
    history: the template is in use again.
    """
    present = item.metadata.annotations or {}
    wanted = _copied(deployment)
    if revision_of(item) < revision:
        wanted[REVISION] = str(revision)
        if REVISION in present:
            wanted[HISTORY] = _longer_history(present.get(HISTORY, ""), present[REVISION])
    return {name: text for name, text in wanted.items() if present.get(name) != text}


def _copied(deployment: Deployment) -> dict[str, str]:
    annotations = deployment.metadata.annotations or {}
    return {name: text for name, text in annotations.items() if name not in _NOT_COPIED}


def _longer_history(history: str, revision: str) -> str:
    parts = [*filter(None, history.split(",")), revision]
    while len(",".join(parts)) > _LONGEST_HISTORY:
        parts.pop(0)
    return ",".join(parts)


def size_annotations(deployment: Deployment) -> dict[str, str]:
    """Return the annotations that tell for which number of pods a ReplicaSet was sized."""
    wanted = deployment.spec.replicas
    return {DESIRED: str(wanted), MAXIMUM: str(wanted + max_surge(deployment.spec))}


def new_replica_set(deployment: Deployment, replicas: int, revision: int) -> JsonObject:
    """Return the ReplicaSet of the present template, to create."""
    spec, meta = deployment.spec, deployment.metadata
    digest = templates.hash_of(spec.template, deployment.status.collision_count)
    template = templates.with_label(spec.template, TEMPLATE_HASH, digest)
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
            "annotations": {
                **_copied(deployment),
                **size_annotations(deployment),
                REVISION: str(revision),
            },
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
