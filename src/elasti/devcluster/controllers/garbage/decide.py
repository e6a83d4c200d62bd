"""What becomes of an object, given what is known of its owners. Pure."""

from __future__ import annotations

import dataclasses
import enum
from typing import TYPE_CHECKING, TypeAlias

from elasti.devcluster.controllers.garbage.graph import FOREGROUND, ORPHAN

if TYPE_CHECKING:
    from collections.abc import Mapping

    from elasti.devcluster.controllers.garbage.graph import Item
    from kubeloop.client.deletion import Propagation
    from kubeloop.objects.meta import OwnerReference


class OwnerState(enum.Enum):
    """What is known of an owner."""

    SOLID = "there, or not to be judged"
    ABSENT = "gone, or never was"
    WAITING = "being deleted, and waiting for its dependents to go first"


@dataclasses.dataclass(frozen=True, slots=True)
class Keep:
    """Leave it alone."""


@dataclasses.dataclass(frozen=True, slots=True)
class Disown:
    """Take away the references to owners that do not hold it any more; others do."""

    keep: tuple[OwnerReference, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Collect:
    """Delete it; `unblock` first, so that a circle of foreground deletions can end."""

    propagation: Propagation
    unblock: bool = False


Verdict: TypeAlias = Keep | Disown | Collect


def decide(
    item: Item,
    states: Mapping[str, OwnerState],
    *,
    has_dependents: bool,
    dependent_waits: bool,
) -> Verdict:
    """Judge an object that is not being deleted; `states` are its owners' by uid.

    `dependent_waits`: one of its own dependents is itself being deleted in the foreground.
    """
    if not item.owners:
        return Keep()
    solid = tuple(ref for ref in item.owners if states[ref.uid] is OwnerState.SOLID)
    if solid:
        return Keep() if len(solid) == len(item.owners) else Disown(keep=solid)
    if has_dependents and OwnerState.WAITING in states.values():
        # Its owner waits for it, so it has to wait for its own dependents.
        return Collect("Foreground", unblock=dependent_waits)
    return Collect(_wish(item))


def _wish(item: Item) -> Propagation:
    """Return how its dependents are to be treated: as its finalizers say."""
    if ORPHAN in item.finalizers:
        return "Orphan"
    return "Foreground" if FOREGROUND in item.finalizers else "Background"
