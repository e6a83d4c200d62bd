"""What people ask for durably: that a target sleeps now. Pure.

The request is an annotation, so that it survives a change of leaders. It stands for the rest of the
cooldown and for the triggers, and for nothing else: the resolver is put in rotation and settles, it is
asked for traffic, autoscalers are paused and everyone on the same target must agree, as always. It is
tried once. A wake-up, from whomever, is stronger.

Once the target sleeps the request goes on quieting the triggers until they have calmed down by
themselves, since metrics lag behind; after a cooldown it is over in any case. Then the annotation is
removed.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, NamedTuple

from elasti.api.names import SLEEP_ANNOTATION
from elasti.operator.handover.machine import Activity, State
from elasti.operator.handover.state import SleepRequest
from elasti.operator.report.status import obstacle

if TYPE_CHECKING:
    from collections.abc import Mapping

    from elasti.operator.handover.observe import Facts
    from elasti.operator.handover.state import ServiceState

_MIN_LIFETIME = 120.0
"""A request is good for a cooldown, but for so many seconds at least: a hand-over takes its time."""


class SleepRequestOutcome(enum.Enum):
    """How a request ends."""

    DONE = "done"
    REFUSED = "refused"


class EndedSleepRequest(NamedTuple):
    """A request that is over, and why where it was refused."""

    how: SleepRequestOutcome
    why: str = ""


def note(annotations: Mapping[str, str] | None, memory: ServiceState, now: float) -> None:
    """Take in a request that is new, and forget one that was taken back."""
    text = (annotations or {}).get(SLEEP_ANNOTATION, "")
    if text == memory.sleep_text:
        return
    memory.sleep_text = text
    asleep = memory.state is State.PROXY
    memory.sleep = SleepRequest(now, fulfilled=asleep) if text else None


def supersede(memory: ServiceState) -> None:
    """A wake-up was asked for."""
    if memory.sleep is not None:
        memory.sleep.superseded = True


def is_in_force(memory: ServiceState) -> bool:
    """Whether a request stands for the cooldown and the triggers now."""
    request = memory.sleep
    if request is None or request.superseded or memory.last_attempt >= request.since:
        return False
    return not request.fulfilled or memory.state is State.PROXY


def ending(
    facts: Facts, memory: ServiceState, *, now: float, cooldown: float, triggers_active: bool
) -> EndedSleepRequest | None:
    """Return how a request ends, after a look; None while it is in force, or where there is none."""
    request = memory.sleep
    if request is None:
        return None
    expired = now - request.since >= max(cooldown, _MIN_LIFETIME)
    if request.fulfilled:
        calm = not triggers_active
        over = not is_in_force(memory) or expired or calm
        return EndedSleepRequest(SleepRequestOutcome.DONE) if over else None
    if why := _refusal(facts, memory, request):
        return EndedSleepRequest(SleepRequestOutcome.REFUSED, why)
    return (
        EndedSleepRequest(SleepRequestOutcome.REFUSED, "it could not be done in time")
        if expired
        else None
    )


def _refusal(facts: Facts, memory: ServiceState, request: SleepRequest) -> str:
    if request.superseded:
        return "a wake-up was asked for meanwhile"
    if memory.last_attempt >= request.since:
        return memory.attempt_ended
    if memory.state is State.WAKING:
        return "connections wait for it" if memory.activity is Activity.BUSY else ""
    found = obstacle(facts, memory)
    return found.message if found else ""
