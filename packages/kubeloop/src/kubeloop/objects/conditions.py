"""Status conditions: what a controller says about an object, one entry a type.

Conditions are values; setting one returns a new tuple and leaves the old one alone, so that "did
anything change" is a comparison. `lastTransitionTime` moves only with the status, never with the
reason or the message: it answers "for how long".
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Sequence
from typing import Literal, TypeAlias

import msgspec

from kubeloop.objects.times import format_time

ConditionStatus: TypeAlias = Literal["True", "False", "Unknown"]


class Condition(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, gc=False):
    """A `metav1.Condition`. `reason` is CamelCase for machines, `message` for people."""

    type: str
    status: ConditionStatus
    reason: str = ""
    message: str = ""
    last_transition_time: str = ""
    observed_generation: int = 0


def find_condition(conditions: Iterable[Condition] | None, kind: str) -> Condition | None:
    """Return the condition of that type, or None."""
    return next((found for found in conditions or () if found.type == kind), None)


def is_condition_true(conditions: Iterable[Condition] | None, kind: str) -> bool:
    """Whether the condition is there and says True."""
    found = find_condition(conditions, kind)
    return found is not None and found.status == "True"


def with_condition(
    conditions: Sequence[Condition] | None, new: Condition, *, now: dt.datetime
) -> tuple[Condition, ...]:
    """Return the conditions with `new` in its type's place, or at the end.

    If the status stays, the old transition time stays; if it changes, the time is that of `new`,
    else `now`.
    """
    present = tuple(conditions or ())
    old = find_condition(present, new.type)
    if old is not None and old.status == new.status:
        since = old.last_transition_time
    else:
        since = new.last_transition_time or format_time(now)
    entry = msgspec.structs.replace(new, last_transition_time=since)
    if old is None:
        return (*present, entry)
    return tuple(entry if found.type == new.type else found for found in present)


def without_condition(conditions: Sequence[Condition] | None, kind: str) -> tuple[Condition, ...]:
    """Return the conditions but the one of that type."""
    return tuple(found for found in conditions or () if found.type != kind)
