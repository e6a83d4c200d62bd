"""The remembered templates of a StatefulSet. Pure."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import msgspec

from elasti.devcluster.controllers import templates
from elasti.devcluster.controllers.pod_control import controller_reference
from elasti.devcluster.controllers.statefulsets.identity import revision_of
from elasti.devcluster.controllers.workloads import STATEFUL_SET

if TYPE_CHECKING:
    from collections.abc import Iterable

    from elasti.devcluster.controllers.pods import Pod
    from elasti.devcluster.controllers.workloads import ControllerRevision, StatefulSet
    from kubeloop.objects.meta import JsonObject

_HASH_LABEL = "controller.kubernetes.io/hash"
_LONGEST_PREFIX = 223


@dataclasses.dataclass(frozen=True, slots=True)
class Revision:
    """A template by its name."""

    name: str
    template: JsonObject


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """What is known of a StatefulSet's past, and what has to be written for its present.

    `create` is the present template's revision where it is new, `renumber` where it is an old one
    that is wanted again.
    """

    current: Revision
    update: Revision
    create: JsonObject | None = None
    renumber: tuple[ControllerRevision, int] | None = None


def template_of(revision: ControllerRevision) -> JsonObject:
    """Return the template that a revision remembers."""
    template = (revision.data.get("spec") or {}).get("template") or {}
    return {name: value for name, value in template.items() if name != "$patch"}


def read_history(stateful_set: StatefulSet, revisions: Iterable[ControllerRevision]) -> History:
    """Find the present template among the revisions, and the one that pods are to keep for now."""
    ordered = sorted(revisions, key=lambda r: (r.revision, r.metadata.creation_timestamp or ""))
    present = templates.normal(stateful_set.spec.template)
    number = max((found.revision for found in ordered), default=0) + 1
    equal = [found for found in ordered if templates.normal(template_of(found)) == present]
    create = renumber = None
    if not equal:
        create = new_revision(stateful_set, number)
        update = Revision(create["metadata"]["name"], stateful_set.spec.template)
    else:
        update = _as_value(equal[-1])
        renumber = (equal[-1], number) if equal[-1] is not ordered[-1] else None
    named = stateful_set.status.current_revision
    current = next((_as_value(found) for found in ordered if found.metadata.name == named), update)
    return History(current=current, update=update, create=create, renumber=renumber)


def _as_value(revision: ControllerRevision) -> Revision:
    return Revision(revision.metadata.name, template_of(revision))


def new_revision(stateful_set: StatefulSet, number: int) -> JsonObject:
    """Return the revision of the present template, to create."""
    meta, template = stateful_set.metadata, stateful_set.spec.template
    digest = templates.hash_of(template, stateful_set.status.collision_count)
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
    pods: Iterable[Pod],
    history: History,
) -> list[ControllerRevision]:
    """Return the revisions that may go: used by nothing, and beyond the history's limit."""
    limit = stateful_set.spec.revision_history_limit
    if limit is None or limit < 0:
        return []
    used = {history.current.name, history.update.name, *map(revision_of, pods)}
    unused = [found for found in revisions if found.metadata.name not in used]
    unused.sort(key=lambda found: found.revision)
    return unused[: max(0, len(unused) - limit)]
