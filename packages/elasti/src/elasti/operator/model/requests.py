"""Requests to one target, with their times: wake-ups, requests to sleep, traffic.

A durable request is an annotation, so that it survives a change of leaders. A request to sleep
stands for the rest of the cooldown and for the triggers, and for nothing else: the resolver is put
in rotation and settles, it is asked for traffic, autoscalers are paused and every ElastiService on
the same target must agree, as always. It is tried once. A wake-up is stronger, and so is the time
until which a user wants the target awake.

Once the target sleeps, status has the outcome. The request then goes on quieting the triggers until each
has been read again and shows no use since, because metrics lag; after a cooldown it is over in any case.
Then the annotation is removed.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import NamedTuple

from elasti.api.conditions import NO_OBSTACLE, Obstacle, Reason, WakeCause
from elasti.api.names import KEEP_AWAKE_ANNOTATION, SLEEP_ANNOTATION, WAKE_ANNOTATION
from elasti.api.states import SleepOutcome
from elasti.api.types import ElastiServiceStatus, SleepRequestStatus
from kubeloop.objects.times import unix_seconds

NO_STATUS = ElastiServiceStatus()


class WakeOrigin(NamedTuple):
    """The reason of a wake-up: the cause (None if unknown), who asked for it, and a sentence."""

    cause: WakeCause | None
    client: str
    why: str
    wake_id: str = ""

    @classmethod
    def request(cls, client: str = "", wake_id: str = "") -> WakeOrigin:
        """Return the origin of a wake-up that a resolver asked for."""
        by = f"a request of {client or 'a client'}" + (f" (wake_id {wake_id})" if wake_id else "")
        return cls(WakeCause.REQUEST, client, by, wake_id)

    @classmethod
    def dependency(cls, dependent: str, wake_id: str = "") -> WakeOrigin:
        """Return the origin of a wake-up for an ElastiService that depends on this one."""
        why = f"ElastiService {dependent} is awake or waking, and depends on it"
        return cls(WakeCause.DEPENDENCY, dependent, why, wake_id)


@dataclasses.dataclass(frozen=True, slots=True)
class SleepRequest:
    """A user asked for the target to sleep now.

    `since`: when it was first seen. `asleep_at`: when the target was first seen at zero since.
    `superseded`: a wake-up was requested after it.
    """

    since: float
    asleep_at: float | None = None
    superseded: bool = False


@dataclasses.dataclass(slots=True)
class RequestState:
    """The requests for one target, and the times that decide about its sleep. Written here alone.

    Times are seconds since 1970.
    """

    wake: bool = False
    wake_text: str = ""
    sleep: SleepRequest | None = None
    sleep_text: str = ""
    #: of the last request to sleep, if it was decided here
    sleep_outcome: SleepRequestStatus | None = None
    #: the time to keep it awake until that was last in force, as it was written
    kept_text: str = ""
    last_traffic: float = -math.inf
    last_scaled_up: float = -math.inf
    last_attempt: float = -math.inf  #: when an attempt to sleep last ended early
    attempt_ended: Obstacle = NO_OBSTACLE
    cause: WakeCause | None = None  #: of the wake-up that is requested, or of the last
    client: str = ""  #: as the cause
    wake_id: str = ""  #: as the cause
    woken_at: float | None = None  #: when the target left its sleep, until pods take over
    waited: float | None = None  #: how long the first client of that wake-up waited, if one did
    scaled_at: float | None = None  #: when we scaled it up, until status says so
    flapping: bool = False  #: a client wakes it again and again, so its cooldown is longer

    def take_in(
        self,
        annotations: Mapping[str, str] | None,
        now: float,
        status: ElastiServiceStatus = NO_STATUS,
    ) -> None:
        """Take in durable requests that are new, unless status has their outcome.

        A request to sleep that was withdrawn ends.
        """
        found = annotations or {}
        sleep = found.get(SLEEP_ANNOTATION, "")
        if sleep != self.sleep_text:
            if self.sleep is not None and not sleep:
                self.end_sleep(Obstacle(Reason.SUPERSEDED, "the request was withdrawn"))
            self.sleep_text = sleep
            self.sleep = _new_request(sleep, status, now) if sleep else None
        kept = found.get(KEEP_AWAKE_ANNOTATION, "")
        if now < unix_seconds(kept):
            self.kept_text = kept
        wake = found.get(WAKE_ANNOTATION)
        if wake is not None and wake != self.wake_text:
            self.wake_text = wake
            # A resolver without an operator writes its cause behind the time; people write none.
            at, _, cause = wake.partition(" ")
            by = WakeCause.REQUEST if cause == WakeCause.REQUEST else WakeCause.MANUAL
            self.want_wake(min(unix_seconds(at), now), WakeOrigin(by, "", ""))

    def want_wake(self, at: float, origin: WakeOrigin, *, asked: bool = True) -> None:
        """Traffic waits, or did at that time; not `asked`: it arrived while the target was parked.

        A wake-up is named after the first client that is known, in its Event and in status alike.
        """
        if self.woken_at is None and (not self.wake or (origin.client and not self.client)):
            self.cause, self.client, _, self.wake_id = origin
        self.wake = True
        if origin.cause is not WakeCause.DEPENDENCY:
            self.note_traffic(at)
        if asked and self.sleep is not None:
            self.sleep = dataclasses.replace(self.sleep, superseded=True)

    def note_traffic(self, at: float) -> None:
        """A resolver saw traffic."""
        self.last_traffic = max(self.last_traffic, at)

    def note_flapping(self, flapping: bool) -> None:  # noqa: FBT001 -- what was found
        """A client wakes it soon after each sleep, or not any longer."""
        self.flapping = flapping

    def note_scaled_up(self, now: float) -> None:
        """The target was scaled up, by us or not."""
        self.last_scaled_up = now

    def note_woken(self, now: float, origin: WakeOrigin) -> None:
        """The target leaves its sleep."""
        self.woken_at, self.waited = now, None
        self.cause, self.client, _, self.wake_id = origin

    def note_waited(self, seconds: float | None) -> None:
        """Resolvers say how long its first client waited."""
        self.waited = seconds

    def note_released(self) -> None:
        """Pods have taken over, or it sleeps again."""
        self.woken_at = None

    def note_scale_written(self, now: float) -> None:
        """We scaled the target up, which status must say."""
        self.scaled_at = now

    def note_reported(self) -> None:
        """Status says when it was scaled up."""
        self.scaled_at = None

    def note_attempt(self, now: float, why: Obstacle) -> None:
        """An attempt to sleep ended."""
        self.last_attempt, self.attempt_ended = now, why

    def note_awake(self) -> None:
        """The target is up: nothing waits for it."""
        self.wake = False

    def note_asleep(self, now: float) -> None:
        """The target is at zero."""
        if self.sleep is not None and self.sleep.asleep_at is None:
            self.sleep = dataclasses.replace(self.sleep, asleep_at=now)
            self.sleep_outcome = SleepRequestStatus(self.sleep_text, SleepOutcome.ASLEEP)

    def end_sleep(self, refusal: Obstacle | None) -> None:
        """A request to sleep is over: carried out, or refused."""
        if self.sleep is not None and self.sleep.asleep_at is None and refusal is not None:
            self.sleep_outcome = SleepRequestStatus(
                self.sleep_text, SleepOutcome.REFUSED, refusal.reason, refusal.message
            )
        self.sleep = None


def _new_request(text: str, status: ElastiServiceStatus, now: float) -> SleepRequest | None:
    """Return a request as a leader finds it; None if an earlier leader has decided it, and it is over."""
    noted = status.sleep_request
    if noted is None or noted.request != text:
        return SleepRequest(now)
    sleeps = status.asleep_since is not None or status.doze is not None
    asleep = noted.outcome is SleepOutcome.ASLEEP and sleeps
    return SleepRequest(now, asleep_at=now) if asleep else None
