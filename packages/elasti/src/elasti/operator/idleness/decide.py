"""Whether a target may sleep or must wake, and what keeps it awake. Pure.

Sleeping needs all the evidence, waking needs any. A trigger lets a target sleep only after its
value has been below the threshold for a whole cooldown. Time about which nothing is known does not
count: a reading that fails (an error, NaN) stops the clock until the next that does not, and a gap of
several polling intervals sets it back. A failure never wakes anything, and nothing falls asleep on one.

`decide` is the only place that says why a target is not asleep, and `obstacle` adds what the
hand-over knows; conditions, events and commands print the result. An obstacle's message never
counts down and does not follow a trigger up and down: it is written into status, where every change
is a write to the server. If its end is known, `until` has it, which status has as `awakeUntil`.

Sleeping is allowed in the enabled period: it starts at each time of the cron schedule, in its
own time zone, and lasts for its duration. Daylight saving is cron's: a start that a clock
change skips or repeats is handled by cronsim the way cron daemons do.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from elasti.api.conditions import Obstacle, Reason
from elasti.api.observed import OBSERVED
from elasti.api.parsing import parse_duration
from elasti.api.schedules import ASLEEP, AWAKE, NO_LEVEL, Level
from elasti.api.states import State
from elasti.api.triggers.registry import self_sufficient_type
from elasti.api.types import EnabledPeriod
from elasti.operator.model.children import uncovered
from elasti.operator.model.facts import Decision, Facts, Verdict
from elasti.operator.model.state import ServiceState
from elasti.operator.model.targets import PODS_ENDING
from elasti.triggers.reader import TriggerReading
from kubeloop.objects.times import format_time

INVALID = Obstacle(Reason.INVALID, "its configuration is invalid; see condition Ready")
_STEADY = (
    "; it has been a steady {:g} B/s for two hours, like a health check: if nothing else uses it, end that, or"
    " set the trigger's metadata.threshold well above it"
)
CALM_AFTER = 60.0
"""Seconds of quiet before status says so: what begins and ends sooner costs no write."""
_LAST_USES = ("created_at", "last_scaled_up", "last_traffic", "last_attempt", "dependents_asleep")
_SKEW = 60.0
"""Seconds by which clocks of servers may differ; what is further ahead was noted before the clock was set back."""


@dataclasses.dataclass(frozen=True, slots=True)
class Evidence:
    """The readings of one trigger so far; times are seconds on the caller's clock.

    `known_at`: when it was last read without failure. `quiet_since` is moved on by the time for which
    nothing was known. `asleep`: the target had no pods then, and should not. `veto`: it can keep a target
    awake, and neither let it sleep by itself nor wake it.
    """

    threshold: float
    last: TriggerReading | None = None
    read_at: float = -math.inf
    quiet_since: float | None = None
    known_at: float = -math.inf
    asleep: bool = False
    veto: bool = False

    def after(
        self, reading: TriggerReading, now: float, *, stale_after: float, asleep: bool = False
    ) -> Evidence:
        """Return the evidence with one more reading; a gap of `stale_after`, or waking, breaks the quiet."""
        if (back := self.read_at - now) > 0 and math.isfinite(back):
            # The clock was set back since: what was counted is kept.
            since = None if self.quiet_since is None else self.quiet_since - back
            moved = dataclasses.replace(
                self, read_at=now, known_at=self.known_at - back, quiet_since=since
            )
            return moved.after(reading, now, stale_after=stale_after, asleep=asleep)
        # That nothing used a target without pods does not show that nothing uses it now.
        woken = self.asleep and not asleep
        recent = now - self.known_at < stale_after
        unbroken = self.quiet_since is not None and recent and not woken
        if not reading.usable:
            since = self.quiet_since if unbroken else None
            return dataclasses.replace(
                self, last=reading, read_at=now, quiet_since=since, asleep=asleep
            )
        since = None
        if is_quiet(reading.value, self.threshold):
            # If nothing grew since the previous reading, it has been quiet since then, whatever that reading
            # was. A mean that is merely low may end with use.
            unused = reading.value == 0 and reading.span < stale_after
            begun = now - reading.span if unused else now
            since = begun if self.quiet_since is None or not unbroken else self.quiet_since
            if unbroken and not self.is_known:
                since += max(begun - self.known_at, 0.0)
        return dataclasses.replace(
            self, last=reading, read_at=now, known_at=now, quiet_since=since, asleep=asleep
        )

    @property
    def is_known(self) -> bool:
        """Whether the last reading did not fail."""
        return self.last is not None and self.last.usable

    @property
    def is_pending(self) -> bool:
        """Whether there is no value yet, and nothing is wrong."""
        return self.last is None or self.last.pending

    def is_calm(self, now: float) -> bool:
        """Whether it has been quiet long enough to be worth a write to status."""
        return self.quiet_since is not None and now - self.quiet_since >= CALM_AFTER

    def is_active(self) -> bool:
        """Whether the last reading shows use."""
        last = self.last
        return last is not None and last.usable and not is_quiet(last.value, self.threshold)

    def is_quiet_after(self, moment: float) -> bool:
        """Whether the last reading is about the time after a moment alone, and shows no use."""
        last = self.last
        return (
            last is not None
            and last.usable
            and not self.is_active()
            and self.read_at - last.span >= moment
        )

    def quiet_for(self, now: float, *, stale_after: float) -> float:
        """Return for how long the trigger has been quiet; 0 if it is not, or is stale."""
        if self.quiet_since is None or now - self.read_at >= stale_after:
            return 0.0
        return now - self.quiet_since


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """All that a decision depends on; times are seconds on the caller's clock.

    `attempt_ended`: why the last attempt to park it ended. `asked`: a person asked for the
    target to sleep now, which stands for the cooldown and for the triggers, and for nothing else.
    `look`: how long before the end of the cooldown the resolver joins the pods, to look for arrivals and for its settle;
    `looking`: it does.
    `suspended`, `keep_awake_until`: a person asked for it to be left alone, or awake until then.
    `needed_by`: an ElastiService that depends on it and is not asleep; `needed_now`: and is awake or waking.
    `depended_on`: it has dependents and no triggers by choice, so that they alone decide; `dependents_asleep`:
    when the last of them fell asleep. `schedule`: what spec.schedules ask for now; `schedule_until`: when that ends, if it is Awake.
    `dozing`: it dozes, or will when it is idle, so its pods are there and serve.
    """

    now: float
    cooldown: float
    created_at: float
    last_scaled_up: float = -math.inf
    last_traffic: float = -math.inf
    last_attempt: float = -math.inf
    attempt_ended: str = ""
    asked: bool = False
    suspended: bool = False
    keep_awake_until: float = -math.inf
    enabled: bool = True
    schedule: Level = NO_LEVEL
    schedule_until: float | None = None
    needed_by: str = ""
    needed_now: bool = False
    depended_on: bool = False
    dependents_asleep: float = -math.inf
    triggers: Sequence[Evidence] = ()
    stale_after: float = 120.0
    look: float = 0.0
    looking: bool = False
    dozing: bool = False

    def __post_init__(self) -> None:
        # With the clock set back, what was noted before would keep the target awake until it has caught up.
        for name in _LAST_USES:
            if getattr(self, name) > self.now + _SKEW:
                object.__setattr__(self, name, -math.inf)


def is_quiet(value: float, threshold: float) -> bool:
    """Whether a value is below its threshold; zero is quiet even if the threshold is zero."""
    return value < threshold or value == 0


def decide(seen: Situation) -> Decision:
    """Weigh the evidence: the first row of `PRECEDENCE` that has something to say decides."""
    said = (row.weigh(seen) for row in PRECEDENCE)
    return next(decision for decision in said if decision is not None)


def _may_look(seen: Situation) -> bool:
    """Whether nothing but the time of the look is missing for a sleep.

    A reading that failed does not end a look, as it does not end the cooldown: it only stops the clock.
    """
    until = seen.cooldown - seen.look
    quiet = [
        trigger.quiet_since is not None
        and (seen.looking or trigger.quiet_for(seen.now, stale_after=seen.stale_after) >= until)
        for trigger in seen.triggers
    ]
    cooling = next(_cooldowns(dataclasses.replace(seen, cooldown=until)), None)
    signals = any(not trigger.veto for trigger in seen.triggers)
    return cooling is None and signals and all(quiet)


def _suspended(seen: Situation) -> Decision | None:
    if not seen.suspended:
        return None
    alone = "spec.suspend is true, so Elasti does not scale it; run elasti resume to end that"
    return Decision(Verdict.STAY, "suspended", Obstacle(Reason.SUSPENDED, alone))


def _kept_awake(seen: Situation) -> Decision | None:
    if seen.now >= seen.keep_awake_until:
        return None
    kept = "it is kept awake on request; elasti resume ends that"
    found = Obstacle(Reason.KEPT_AWAKE, kept, seen.keep_awake_until)
    return Decision(Verdict.WAKE, "kept awake", found)


def _scheduled_awake(seen: Situation) -> Decision | None:
    if not seen.enabled:
        outside = "the current time is outside spec.enabledPeriod, so the target stays awake"
        found = Obstacle(Reason.OUTSIDE_PERIOD, outside)
        return Decision(Verdict.WAKE, "outside the enabled period", found)
    if seen.schedule.keep != AWAKE:
        return None
    text = f"spec.schedules keeps it awake ({seen.schedule.by}); elasti schedule shows for how long"
    found = Obstacle(Reason.SCHEDULED_AWAKE, text, seen.schedule_until)
    return Decision(Verdict.WAKE, f"scheduled to be awake ({seen.schedule.by})", found)


def _needed(seen: Situation) -> Decision | None:
    if not seen.needed_by:
        return None
    text = f"ElastiService {seen.needed_by} depends on it and is not asleep"
    verdict = Verdict.WAKE if seen.needed_now else Verdict.STAY
    return Decision(verdict, text, Obstacle(Reason.NEEDED_BY, text))


def _asked(seen: Situation) -> Decision | None:
    return Decision(Verdict.SLEEP, "asked to sleep") if seen.asked else None


def _used(seen: Situation) -> Decision | None:
    """Weigh traffic and triggers; while a schedule keeps the target asleep, traffic alone."""
    if _by_schedule(seen):
        cooling = next(_cooldowns(seen), None)
        return Decision(Verdict.STAY, cooling.message, cooling) if cooling else None
    found = next(_obstacles(seen), None)
    if found is None:
        return Decision(Verdict.SLEEP, f"idle for {seen.cooldown:.0f} s")
    if _shows_use(seen):
        return Decision(Verdict.WAKE, "a trigger is at or above its threshold", found)
    if seen.look and _may_look(seen):
        return Decision(Verdict.LOOK, "idle for all of the cooldown except the last look", found)
    return Decision(Verdict.STAY, found.message, found)


def _shows_use(seen: Situation) -> bool:
    # The traffic of a dozing target does not reach the resolver: its triggers, also vetoes, see it.
    return any(item.is_active() and (seen.dozing or not item.veto) for item in seen.triggers)


def _by_schedule(seen: Situation) -> bool:
    """Whether a schedule stands for the triggers now."""
    return seen.schedule.keep == ASLEEP and not (seen.dozing and _shows_use(seen))


def _scheduled_asleep(seen: Situation) -> Decision | None:
    return Decision(Verdict.SLEEP, f"scheduled to be asleep ({seen.schedule.by})")


class Precedence(NamedTuple):
    """One rule of the decision, and its effect; `name` and `effect` are printed in the documentation."""

    name: str
    effect: str
    weigh: Callable[[Situation], Decision | None]


PRECEDENCE = (
    Precedence("`spec.suspend`", "awake, and left alone", _suspended),
    Precedence("`elasti wake --for` and `--until`", "awake until then", _kept_awake),
    Precedence(
        "a schedule with `keep: Awake`, one that cannot be read, or a time outside `spec.enabledPeriod`",
        "awake; a sleeping target is woken",
        _scheduled_awake,
    ),
    Precedence(
        "an ElastiService that depends on it and is not asleep",
        "awake; a sleeping target is woken when the other one wakes",
        _needed,
    ),
    Precedence("`elasti sleep`", "asleep once; cooldown and triggers are ignored", _asked),
    Precedence(
        "traffic and triggers",
        "awake while there is traffic, or a trigger shows use; during a schedule with `keep: Asleep` only"
        " traffic counts (for a target that dozes, its triggers)",
        _used,
    ),
    Precedence(
        "a schedule with `keep: Asleep`",
        "asleep, a cooldown after the last traffic",
        _scheduled_asleep,
    ),
)
"""The first row that applies decides. A row says nothing (None) if it does not apply."""


def no_triggers() -> str:
    """Return the message for an ElastiService without triggers."""
    return (
        "it has no triggers, so nothing can show that the target is idle; add one to spec.triggers,"
        f" such as {{type: {self_sufficient_type()}}}"
    )


def _obstacles(seen: Situation) -> Iterator[Obstacle]:
    """Iterate over what is in the way, what a person can do most about first."""
    if not seen.triggers and not seen.depended_on:
        yield Obstacle(Reason.NO_TRIGGERS, no_triggers())
    elif seen.triggers and all(trigger.veto for trigger in seen.triggers):
        yield Obstacle(
            Reason.NO_SIGNAL,
            "every one of spec.triggers has the role Veto, and a Veto never lets a target sleep by"
            " itself; add one with the role Signal",
        )
    for index, trigger in enumerate(seen.triggers):
        if trigger.last is None or seen.now - trigger.read_at >= seen.stale_after:
            yield Obstacle(Reason.TRIGGERS_UNREAD, f"triggers[{index}] has not been read lately")
        elif trigger.last.pending:
            yield Obstacle(Reason.TRIGGERS_UNREAD, f"triggers[{index}]: {trigger.last.error}")
        elif not trigger.last.usable:
            why = trigger.last.error or "its value is NaN"
            yield Obstacle(Reason.TRIGGERS_FAILING, f"triggers[{index}] cannot be used: {why}")
    yield from _cooldowns(seen)
    for index, trigger in enumerate(seen.triggers):
        quiet = trigger.quiet_for(seen.now, stale_after=seen.stale_after)
        if seen.looking and trigger.quiet_since is not None:
            # The time since the last reading is not known to be quiet: one more is read at the end of the cooldown.
            quiet = min(quiet, trigger.known_at - trigger.quiet_since)
        if trigger.is_active() or quiet < seen.cooldown:
            steady = trigger.last.steady if trigger.last is not None else 0.0
            yield Obstacle(
                Reason.IN_USE,
                f"triggers[{index}] has not been seen below its threshold for the whole cooldown of"
                f" {seen.cooldown:.0f} s{_STEADY.format(steady) if steady else ''}",
            )


def sleeps_at(seen: Situation) -> float | None:
    """Return when the target will have been idle for the whole cooldown if it stays unused.

    None if that is unknown: a trigger is in use or unknown, or time alone is not enough.
    """
    if seen.suspended or not seen.enabled or seen.schedule.keep == AWAKE or seen.needed_by:
        return None
    last_use: list[float] = [getattr(seen, name) for name in _LAST_USES]
    if _by_schedule(seen):
        return max(max(last_use) + seen.cooldown, seen.keep_awake_until)
    quiet = [
        trigger.quiet_since
        for trigger in seen.triggers
        if trigger.is_known and seen.now - trigger.read_at < seen.stale_after
    ]
    if (
        (all(trigger.veto for trigger in seen.triggers) and not seen.depended_on)
        or len(quiet) < len(seen.triggers)
        or None in quiet
    ):
        return None
    idle = max(*last_use, *(since for since in quiet if since is not None)) + seen.cooldown
    return max(idle, seen.keep_awake_until)


def _cooldowns(seen: Situation) -> Iterator[Obstacle]:
    cooldown = f"the cooldown of {seen.cooldown:.0f} s"
    if seen.now - seen.last_attempt < seen.cooldown:
        yield Obstacle(
            Reason.ATTEMPT_ENDED,
            f"the last attempt to put it to sleep ended: {seen.attempt_ended or 'it was given up'};"
            f" the next one follows after {cooldown}",
            seen.last_attempt + seen.cooldown,
        )
    for what, moment in (
        ("it was last woken", seen.last_scaled_up),
        ("it was created", seen.created_at),
        ("its last dependent fell asleep", seen.dependents_asleep),
    ):
        if seen.now - moment < seen.cooldown:
            text = f"{cooldown} since {what} is not over"
            yield Obstacle(Reason.COOLDOWN, text, moment + seen.cooldown)
    if seen.now - seen.last_traffic < seen.cooldown:
        # Every request moves its end, so none is named.
        text = f"{cooldown} since traffic last reached the resolver is not over"
        yield Obstacle(Reason.COOLDOWN, text)


def obstacle(facts: Facts, state: ServiceState) -> Obstacle | None:
    """Return what keeps a target awake, by all that is known; None for one that sleeps or may."""
    unready = facts.unready
    match state.current:
        case None | State.SERVE if unready is not None and not facts.es.spec.suspended:
            return Obstacle(unready.reason, unready.message)
        case None | State.SERVE if state.current is None or facts.es.spec.observes:
            return INVALID if state.current is None else OBSERVED
        case State.PROXY | State.ENGAGING | State.DRAINING | State.PARKING:
            return None
        case State.WAKING:
            ending = facts.waits_for_pods
            return Obstacle(
                Reason.WAKING, PODS_ENDING if ending else "no endpoint of the Service is ready yet"
            )
    missing = uncovered(facts.service, facts.resolvers) if facts.service else ()
    stays = facts.es.spec.sleep.mode == "Doze"  # no resolver has to hold anything
    if facts.decision.obstacle is not None or stays or (facts.resolvers and not missing):
        return facts.decision.obstacle
    return Obstacle(
        Reason.NO_RESOLVER,
        f"no ready resolver has an {' or '.join(missing)} address, but the Service does; set"
        " ipFamilyPolicy: PreferDualStack in the resolver's Service"
        if facts.resolvers
        else "no resolver is ready to hold its traffic",
    )


def format_moment(moment: float) -> str:
    """Write a moment, in seconds since 1970, as Kubernetes writes times."""
    return format_time(dt.datetime.fromtimestamp(moment, dt.UTC))


def is_enabled(period: EnabledPeriod | None, now: dt.datetime) -> bool:
    """Whether sleeping is allowed at `now` (aware); always, if no period is given."""
    if period is None:
        return True
    return now < _last_start(period, now) + dt.timedelta(seconds=parse_duration(period.duration))


def _last_start(period: EnabledPeriod, now: dt.datetime) -> dt.datetime:
    import zoneinfo  # noqa: PLC0415 -- with cronsim 1.5 MiB, and most ElastiServices have no period

    from cronsim import CronSim  # noqa: PLC0415 -- as above

    # A start at `now` itself counts, and the backward search leaves its own start out.
    local = now.astimezone(zoneinfo.ZoneInfo(period.timezone))
    just_after = local + dt.timedelta(microseconds=1)
    start = next(CronSim(period.schedule, just_after, reverse=True))
    # Durations are absolute: adding one to a local time would gain or lose an hour twice a year.
    return start.astimezone(dt.UTC)
