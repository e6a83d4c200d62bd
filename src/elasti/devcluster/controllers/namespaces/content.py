"""What is left in a namespace that is being deleted, and how its conditions say so. Pure."""

from __future__ import annotations

import collections
import dataclasses
from typing import TYPE_CHECKING

from kubeloop.objects.conditions import Condition, with_condition
from kubeloop.objects.gvk import GroupVersionResource

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Iterable

    from kubeloop.client.discovery_documents import ResourceInfo

_PODS = GroupVersionResource("", "v1", "pods")
# Each condition's type, and its reason and message where there is nothing to complain of.
_FINE = {
    "NamespaceDeletionDiscoveryFailure": (
        "ResourcesDiscovered",
        "All resources successfully discovered",
    ),
    "NamespaceDeletionGroupVersionParsingFailure": (
        "ParsedGroupVersions",
        "All legacy kube types successfully parsed",
    ),
    "NamespaceDeletionContentFailure": (
        "ContentDeleted",
        "All content successfully deleted, may be waiting on finalization",
    ),
    "NamespaceContentRemaining": ("ContentRemoved", "All content successfully removed"),
    "NamespaceFinalizersRemaining": (
        "ContentHasNoFinalizers",
        "All content-preserving finalizers finished",
    ),
}


@dataclasses.dataclass(slots=True)
class Remains:
    """What is still there, by kind and by finalizer, and what went wrong."""

    objects: dict[GroupVersionResource, int] = dataclasses.field(default_factory=dict)
    finalizers: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    discovery_error: str = ""
    errors: list[str] = dataclasses.field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        """Whether the namespace may go."""
        return not self.objects and not self.errors and not self.discovery_error

    def complaints(self) -> dict[str, tuple[str, str]]:
        """Return reason and message of the conditions that are true."""
        found: dict[str, tuple[str, str]] = {}
        if self.discovery_error:
            found["NamespaceDeletionDiscoveryFailure"] = ("DiscoveryFailed", self.discovery_error)
        if self.errors:
            text = ", ".join(sorted(self.errors))
            found["NamespaceDeletionContentFailure"] = (
                "ContentDeletionFailed",
                f"Failed to delete all resource types, {len(self.errors)} remaining: {text}",
            )
        if self.objects:
            parts = (
                f"{gvr.resource}.{gvr.group} has {number} resource instances"
                for gvr, number in self.objects.items()
            )
            text = f"Some resources are remaining: {', '.join(sorted(parts))}"
            found["NamespaceContentRemaining"] = ("SomeResourcesRemain", text)
        if self.finalizers:
            held = (f"{name} in {n} resource instances" for name, n in self.finalizers.items())
            found["NamespaceFinalizersRemaining"] = (
                "SomeFinalizersRemain",
                "Some content in the namespace has finalizers remaining: "
                + ", ".join(sorted(held)),
            )
        return found


def conditions_for(
    remains: Remains, present: tuple[Condition, ...] | None, now: dt.datetime
) -> tuple[Condition, ...]:
    """Return the five conditions of a namespace that is being deleted."""
    complaints = remains.complaints()
    conditions = tuple(present or ())
    for kind, fine in _FINE.items():
        reason, message = complaints.get(kind, fine)
        status = "True" if kind in complaints else "False"
        new = Condition(type=kind, status=status, reason=reason, message=message)  # type: ignore[arg-type]  # one of the two words
        conditions = with_condition(conditions, new, now=now)
    return conditions


def stages(resources: Iterable[ResourceInfo]) -> list[list[ResourceInfo]]:
    """Return what to delete, in order: pods first, so that nothing vanishes under a running one."""
    chosen: dict[tuple[str, str], ResourceInfo] = {}
    for info in resources:
        if info.namespaced and info.verbs >= {"list", "delete"}:
            chosen.setdefault((info.gvr.group, info.gvr.resource), info)
    pods = [info for info in chosen.values() if info.gvr == _PODS]
    return [pods, [info for info in chosen.values() if info.gvr != _PODS]]
