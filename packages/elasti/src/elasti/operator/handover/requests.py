"""What is asked of a target, and when: wake-ups, requests to sleep, traffic. Pure.

A durable request is an annotation, so that it survives a change of leaders. A request to sleep
stands for the rest of the cooldown and for the triggers, and for nothing else: the resolver is put
in rotation and settles, it is asked for traffic, autoscalers are paused and every ElastiService on
the same target must agree, as always. It is tried once. A wake-up is stronger, and so is the time
until which a user wants the target awake.

Once the target sleeps the request goes on quieting the triggers until they have calmed down by
themselves, since metrics lag behind; after a cooldown it is over in any case. Then the annotation is
removed.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, NamedTuple

from elasti.api.conditions import Reason, WakeCause
from elasti.api.names import FIELD_MANAGER, KEEP_AWAKE_ANNOTATION, SLEEP_ANNOTATION, WAKE_ANNOTATION
from elasti.operator.handover.machine import Activity, State
from elasti.operator.report.status import obstacle
from kubeloop.objects.times import parse_time, unix_seconds

if TYPE_CHECKING:
    from collections.abc import Mapping

    from elasti.operator.handover.observe import Facts
    from elasti.operator.handover.state import ServiceState

_MIN_LIFETIME = 120.0
"""A request is good for a cooldown, but for so many seconds at least: a hand-over takes its time."""
_SHOWN = 40
"""Of a value that a user wrote, in a message."""


@dataclasses.dataclass(frozen=True, slots=True)
class SleepRequest:
    """A user asked for the target to sleep now.

    `since`: when it was first seen. `fulfilled`: the target was at zero since. `superseded`: a wake-up
    was asked for after it.
    """

    since: float
    fulfilled: bool = False
    superseded: bool = False


@dataclasses.dataclass(slots=True)
class RequestState:
    """The requests for one target, and the times that decide about its sleep. Written here alone.

    Times are seconds since 1970. `last_attempt` is when an attempt to sleep last ended early.
    `kept_text` is the time to keep it awake until that was last in force, as it was written. `cause`
    and `client`: of the wake-up that is asked for, or of the last. `woken_at`: when the target left
    its sleep, until pods take over; `scaled_at`: when we scaled it up, until status says so.
    """

    wake: bool = False
    wake_text: str = ""
    sleep: SleepRequest | None = None
    sleep_text: str = ""
    kept_text: str = ""
    last_traffic: float = -math.inf
    last_scaled_up: float = -math.inf
    last_attempt: float = -math.inf
    attempt_ended: str = ""
    cause: WakeCause | None = None
    client: str = ""
    woken_at: float | None = None
    scaled_at: float | None = None

    def take_in(self, annotations: Mapping[str, str] | None, now: float) -> None:
        """Take in durable requests that are new; forget a request to sleep that was taken back."""
        found = annotations or {}
        sleep = found.get(SLEEP_ANNOTATION, "")
        if sleep != self.sleep_text:
            self.sleep_text = sleep
            self.sleep = SleepRequest(now) if sleep else None
        kept = found.get(KEEP_AWAKE_ANNOTATION, "")
        if now < unix_seconds(kept):
            self.kept_text = kept
        wake = found.get(WAKE_ANNOTATION)
        if wake is not None and wake != self.wake_text:
            self.wake_text = wake
            # A resolver without an operator writes its cause behind the time; people write none.
            at, _, cause = wake.partition(" ")
            by_hand = cause != WakeCause.REQUEST
            self.want_wake(
                min(unix_seconds(at), now),
                cause=WakeCause.MANUAL if by_hand else WakeCause.REQUEST,
            )

    def want_wake(
        self,
        at: float,
        *,
        asked: bool = True,
        cause: WakeCause = WakeCause.REQUEST,
        client: str = "",
    ) -> None:
        """Traffic waits, or did at that time; not `asked`: it arrived while the target was parked."""
        if not self.wake or client:
            self.cause, self.client = cause, client
        self.wake = True
        self.note_traffic(at)
        if asked and self.sleep is not None:
            self.sleep = dataclasses.replace(self.sleep, superseded=True)

    def note_traffic(self, at: float) -> None:
        """A resolver saw traffic."""
        self.last_traffic = max(self.last_traffic, at)

    def note_scaled_up(self, now: float) -> None:
        """The target was scaled up, by us or not."""
        self.last_scaled_up = now

    def note_woken(self, now: float, origin: WakeOrigin) -> None:
        """The target leaves its sleep."""
        self.woken_at, self.cause, self.client = now, origin.cause, origin.client

    def note_released(self) -> None:
        """Pods have taken over, or it sleeps again."""
        self.woken_at = None

    def note_scale_written(self, now: float) -> None:
        """We scaled the target up, which status must say."""
        self.scaled_at = now

    def note_reported(self) -> None:
        """Status says when it was scaled up."""
        self.scaled_at = None

    def note_attempt(self, now: float, why: str) -> None:
        """An attempt to sleep ended."""
        self.last_attempt, self.attempt_ended = now, why

    def note_awake(self) -> None:
        """The target is up: nothing waits for it."""
        self.wake = False

    def note_asleep(self) -> None:
        """The target is at zero."""
        if self.sleep is not None:
            self.sleep = dataclasses.replace(self.sleep, fulfilled=True)

    def end_sleep(self) -> None:
        """A request to sleep is over."""
        self.sleep = None


def keep_awake_complaint(
    annotations: Mapping[str, str] | None, state: ServiceState, now: float
) -> str:
    """Return why the time to keep a target awake until has no effect; "" where it has, or had."""
    text = (annotations or {}).get(KEEP_AWAKE_ANNOTATION)
    if text is None or (text and text == state.requests.kept_text):
        return ""
    try:
        parse_time(text)
    except ValueError:
        return (
            f"the annotation {KEEP_AWAKE_ANNOTATION} is {text[:_SHOWN]!r}, which is no time, so it"
            " keeps nothing awake; write it like 2030-01-31T18:00:00Z"
        )
    if now < unix_seconds(text):
        return ""
    return (
        f"the annotation {KEEP_AWAKE_ANNOTATION} is {text}, which is past, so it keeps nothing"
        " awake; write a later time, or remove it"
    )


class WakeOrigin(NamedTuple):
    """What woke a target: the cause, None where it is not known; who asked for it; a sentence."""

    cause: WakeCause | None
    client: str
    why: str


def wake_origin(facts: Facts, state: ServiceState, manager: str) -> WakeOrigin:
    """Return why a sleeping target wakes; `manager`: who wrote its replicas last, where that is known."""
    asked = state.requests
    if asked.wake and asked.cause is WakeCause.MANUAL:
        return WakeOrigin(WakeCause.MANUAL, "", "a person asked for it")
    if asked.wake or (not facts.at_zero and manager == FIELD_MANAGER):
        client = asked.client if asked.wake else ""
        return WakeOrigin(WakeCause.REQUEST, client, f"a request of {client or 'a client'}")
    if not facts.at_zero:
        cause, by = (WakeCause.SCALED, f" by {manager}") if manager else (None, "")
        return WakeOrigin(cause, manager, f"scaled up{by}")
    return _own_wish(facts, state)


def _own_wish(facts: Facts, state: ServiceState) -> WakeOrigin:
    if facts.es.spec.suspend:
        return WakeOrigin(WakeCause.MANUAL, "", "it is suspended")
    if state.handover.refused:
        return WakeOrigin(WakeCause.NOT_IN_ORDER, "", "it is not in order; Ready says why")
    if facts.lost_wake:
        return WakeOrigin(WakeCause.NO_RESOLVER, "", "no resolver holds its traffic")
    kept_by = facts.decision.obstacle.reason if facts.decision.obstacle is not None else ""
    return WakeOrigin(_CAUSES.get(kept_by, WakeCause.TRIGGER), "", facts.decision.reason)


_CAUSES: dict[str, WakeCause] = {
    Reason.OUTSIDE_PERIOD: WakeCause.SCHEDULE,
    Reason.KEPT_AWAKE: WakeCause.MANUAL,
}


def is_in_force(state: ServiceState) -> bool:
    """Whether a request stands for the cooldown and the triggers now."""
    request = state.requests.sleep
    if request is None or request.superseded or state.requests.last_attempt >= request.since:
        return False
    return not request.fulfilled or state.current is State.PROXY


def ending(
    facts: Facts, state: ServiceState, *, now: float, cooldown: float, triggers_active: bool
) -> str | None:
    """Return why a request to sleep ends without effect, "" where it is done.

    None while it is in force, or where there is none.
    """
    request = state.requests.sleep
    if request is None:
        return None
    expired = now - request.since >= max(cooldown, _MIN_LIFETIME)
    if request.fulfilled:
        over = not is_in_force(state) or expired or not triggers_active
        return "" if over else None
    overdue = "it could not be done in time" if expired else None
    return _refusal(facts, state, request) or overdue


def _refusal(facts: Facts, state: ServiceState, request: SleepRequest) -> str:
    if request.superseded:
        return "a wake-up was asked for meanwhile"
    if state.requests.last_attempt >= request.since:
        return state.requests.attempt_ended
    if state.current is State.WAKING:
        return "connections wait for it" if state.handover.activity is Activity.BUSY else ""
    found = obstacle(facts, state)
    return found.message if found else ""
