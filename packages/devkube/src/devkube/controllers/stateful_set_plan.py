"""Which pods of a StatefulSet to create or delete next, its revisions and its status. Pure.

OrderedReady does one thing at a time: pods come in ascending order, each after the one before it is
available, and go in descending order. Parallel creates and deletes all at once. An update replaces
pods from the highest number down to the partition, one after another, in both.

There is no storage in a dev cluster: where a claim template would give a pod a volume, it gets an
empty directory of the same name, and an event says so.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import re
from collections.abc import Iterable, Sequence

import msgspec

from devkube.controllers import objects
from devkube.controllers.objects import (
    STATEFUL_SET,
    ControllerRevision,
    SlimPod,
    StatefulSet,
    StatefulSetStatus,
    is_available,
)
from devkube.controllers.pod_control import controller_reference
from kubeloop.objects.meta import JsonObject

REVISION_LABEL = "controller-revision-hash"
_NAME_LABEL = "statefulset.kubernetes.io/pod-name"
_INDEX_LABEL = "apps.kubernetes.io/pod-index"
_ORDINAL = re.compile(r"(.*)-([0-9]+)\Z")
_HASH_LABEL = "controller.kubernetes.io/hash"
_LONGEST_PREFIX = 223


def ordinal_of(stateful_set: StatefulSet, pod: SlimPod) -> int:
    """Return a pod's number; -1 where its name is not one of this StatefulSet's."""
    match = _ORDINAL.match(pod.metadata.name)
    if match is None or match[1] != stateful_set.metadata.name:
        return -1
    return int(match[2])


def revision_of(pod: SlimPod) -> str:
    """Return the name of the revision that a pod was made of."""
    return (pod.metadata.labels or {}).get(REVISION_LABEL, "")


def pod_of(
    stateful_set: StatefulSet, ordinal: int, *, template: JsonObject, revision: str
) -> JsonObject:
    """Return a pod to create."""
    name = f"{stateful_set.metadata.name}-{ordinal}"
    reference = controller_reference(stateful_set, STATEFUL_SET)
    pod = objects.pod_from(template, reference)
    metadata, spec = pod["metadata"], pod["spec"]
    metadata["name"] = name
    metadata.setdefault("labels", {}).update(
        {_NAME_LABEL: name, _INDEX_LABEL: str(ordinal), REVISION_LABEL: revision}
    )
    spec["hostname"] = name
    spec["subdomain"] = stateful_set.spec.service_name
    claims = [claim["metadata"]["name"] for claim in stateful_set.spec.volume_claim_templates or ()]
    if claims:
        others = [v for v in spec.get("volumes") or [] if v.get("name") not in claims]
        spec["volumes"] = [*others, *({"name": claim, "emptyDir": {}} for claim in claims)]
    return pod


@dataclasses.dataclass(slots=True)
class StatefulSetPlan:
    """The writes: pods by number and revision, and pods to delete."""

    create: list[tuple[int, TemplateRevision]] = dataclasses.field(default_factory=list)
    delete: list[SlimPod] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ObservedStatefulSet:
    """A StatefulSet and its pods."""

    stateful_set: StatefulSet
    pods: Sequence[SlimPod]
    history: RevisionHistory
    now: dt.datetime

    @property
    def is_ordered(self) -> bool:
        """Whether pods come and go one by one."""
        return self.stateful_set.spec.pod_management_policy != "Parallel"

    @property
    def partition(self) -> int:
        """The number from which on pods are updated; older ones keep their revision."""
        rolling = self.stateful_set.spec.update_strategy.rolling_update
        return rolling.partition if rolling is not None else 0

    @property
    def wanted(self) -> range:
        """The numbers of the pods that should be."""
        return range(self.stateful_set.spec.replicas)

    def numbered(self) -> dict[int, SlimPod]:
        """Return the pods by number."""
        numbers = {ordinal_of(self.stateful_set, pod): pod for pod in self.pods}
        return {number: pod for number, pod in numbers.items() if number >= 0}

    def is_healthy(self, pod: SlimPod) -> bool:
        """Whether it is available and stays."""
        seconds = self.stateful_set.spec.min_ready_seconds
        return not pod.is_deleting and is_available(pod, seconds, self.now)

    def revision_for(self, number: int) -> TemplateRevision:
        """Return what a new pod of that number is made of."""
        rolls = self.stateful_set.spec.update_strategy.type == "RollingUpdate"
        return self.history.current if rolls and number < self.partition else self.history.update


def plan_stateful_set(seen: ObservedStatefulSet) -> StatefulSetPlan:
    """Return the next step."""
    plan = StatefulSetPlan()
    if seen.stateful_set.metadata.deletion_timestamp is not None:
        return plan
    if not _fill(seen, plan) or not _condemn(seen, plan):
        return plan
    if seen.stateful_set.spec.update_strategy.type != "OnDelete":
        _update(seen, plan)
    return plan


def _fill(seen: ObservedStatefulSet, plan: StatefulSetPlan) -> bool:
    """Make what is missing; whether the next stage may follow."""
    pods = seen.numbered()
    for number in seen.wanted:
        pod = pods.get(number)
        if pod is None:
            plan.create.append((number, seen.revision_for(number)))
        elif pod.is_terminal:
            if not pod.is_deleting:
                plan.delete.append(pod)
        elif seen.is_healthy(pod):
            continue
        if seen.is_ordered:
            return False
    return True


def _condemn(seen: ObservedStatefulSet, plan: StatefulSetPlan) -> bool:
    """Delete what is too many, the highest number first; whether the next stage may follow."""
    pods = seen.numbered()
    condemned = sorted((number for number in pods if number not in seen.wanted), reverse=True)
    for number in condemned:
        pod = pods[number]
        if not pod.is_deleting:
            plan.delete.append(pod)
        if seen.is_ordered:
            return False
    return True


def _update(seen: ObservedStatefulSet, plan: StatefulSetPlan) -> None:
    pods = seen.numbered()
    for number in reversed(seen.wanted):
        pod = pods.get(number)
        if number < seen.partition or pod is None:
            return
        if revision_of(pod) != seen.history.update.name and not pod.is_deleting:
            if pod not in plan.delete:
                plan.delete.append(pod)
            return
        if not seen.is_healthy(pod):
            return


def count_status(seen: ObservedStatefulSet) -> StatefulSetStatus:
    """Return the status; a finished update makes the new revision the current one."""
    stateful_set, history = seen.stateful_set, seen.history
    created = [pod for pod in seen.pods if pod.status.phase]
    ready = [pod for pod in created if pod.status.phase == "Running" and pod.is_ready]
    staying = [revision_of(pod) for pod in created if not pod.is_deleting]
    seconds = stateful_set.spec.min_ready_seconds
    status = StatefulSetStatus(
        observed_generation=stateful_set.metadata.generation,
        replicas=len(created),
        ready_replicas=len(ready),
        available_replicas=sum(is_available(pod, seconds, seen.now) for pod in ready),
        current_replicas=staying.count(history.current.name),
        updated_replicas=staying.count(history.update.name),
        current_revision=history.current.name,
        update_revision=history.update.name,
        collision_count=0,
        conditions=stateful_set.status.conditions,
    )
    wanted = stateful_set.spec.replicas
    done = (status.updated_replicas, status.ready_replicas, status.replicas) == (wanted,) * 3
    if done and stateful_set.spec.update_strategy.type == "RollingUpdate":
        return msgspec.structs.replace(
            status,
            current_replicas=status.updated_replicas,
            current_revision=status.update_revision,
        )
    return status


@dataclasses.dataclass(frozen=True, slots=True)
class TemplateRevision:
    """A template by its name."""

    name: str
    template: JsonObject


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RevisionHistory:
    """The known history of a StatefulSet, and the revision to write for its present template.

    `create` is the present template's revision if it is new, `renumber` if it is an old one
    that is wanted again.
    """

    current: TemplateRevision
    update: TemplateRevision
    create: JsonObject | None = None
    renumber: tuple[ControllerRevision, int] | None = None


def template_of(revision: ControllerRevision) -> JsonObject:
    """Return the template that a revision remembers."""
    template = (revision.data.get("spec") or {}).get("template") or {}
    return {name: value for name, value in template.items() if name != "$patch"}


def read_history(
    stateful_set: StatefulSet, revisions: Iterable[ControllerRevision]
) -> RevisionHistory:
    """Find the present template among the revisions, and the one that pods are to keep for now."""
    ordered = sorted(revisions, key=lambda r: (r.revision, r.metadata.creation_timestamp or ""))
    present = objects.normal_form(stateful_set.spec.template)
    number = max((found.revision for found in ordered), default=0) + 1
    equal = [found for found in ordered if objects.normal_form(template_of(found)) == present]
    create = renumber = None
    if not equal:
        create = new_revision(stateful_set, number)
        update = TemplateRevision(create["metadata"]["name"], stateful_set.spec.template)
    else:
        update = _as_value(equal[-1])
        renumber = (equal[-1], number) if equal[-1] is not ordered[-1] else None
    named = stateful_set.status.current_revision
    current = next((_as_value(found) for found in ordered if found.metadata.name == named), update)
    return RevisionHistory(current=current, update=update, create=create, renumber=renumber)


def _as_value(revision: ControllerRevision) -> TemplateRevision:
    return TemplateRevision(revision.metadata.name, template_of(revision))


def new_revision(stateful_set: StatefulSet, number: int) -> JsonObject:
    """Return the revision of the present template, to create."""
    meta, template = stateful_set.metadata, stateful_set.spec.template
    digest = objects.hash_of(template)
    labels = (template.get("metadata") or {}).get("labels") or {}
    reference = controller_reference(stateful_set, STATEFUL_SET)
    return {
        "apiVersion": "apps/v1",
        "kind": "ControllerRevision",
        "metadata": {
            "name": f"{meta.name[:_LONGEST_PREFIX]}-{digest}",
            "namespace": meta.namespace,
            "labels": {**labels, _HASH_LABEL: digest},
            "annotations": dict(meta.annotations or {}),
            "ownerReferences": [msgspec.to_builtins(reference)],
        },
        "data": {"spec": {"template": {**template, "$patch": "replace"}}},
        "revision": number,
    }


def surplus(
    stateful_set: StatefulSet,
    revisions: Iterable[ControllerRevision],
    pods: Iterable[SlimPod],
    history: RevisionHistory,
) -> list[ControllerRevision]:
    """Return the revisions that may go: used by nothing, and beyond the history's limit."""
    limit = stateful_set.spec.revision_history_limit
    if limit is None or limit < 0:
        return []
    used = {history.current.name, history.update.name, *map(revision_of, pods)}
    unused = [found for found in revisions if found.metadata.name not in used]
    unused.sort(key=lambda found: found.revision)
    return unused[: max(0, len(unused) - limit)]
