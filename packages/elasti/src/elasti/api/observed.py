"""What an observed ElastiService is worth: the verdict, and the words for it. Pure.

`VERDICTS` is the table: the first row with a reason decides. `REASONS` has a sentence with a remedy for each
reason; status has the reason, commands print the sentence.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from elasti.api.conditions import Obstacle, Reason
from elasti.api.types import ColdStartStatus, ElastiService, ObservedStatus

DAY = 86400.0
QUIET_SHARE = 0.2
"""Below this share of the time asleep, a sleep is not worth its wake-ups."""
WAITING_A_DAY = 600.0
"""Seconds a day that people may wait for cold starts, at p95."""
_LONGEST_START = 600.0
"""Seconds: a pod that became Ready later was not starting, its readiness changed. It is also the default hold."""

OBSERVED = Obstacle(
    Reason.OBSERVED,
    "spec.policy is Observe, so Elasti evaluates this target but never scales it; elasti report --observe shows what it"
    " found, and elasti enable --observed lets the recommended ones sleep",
)
"""What keeps every observed target awake; it never changes, since every change is a write."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """All that a verdict depends on; `hazards`: reasons why a sleep would do harm."""

    observed_seconds: float = 0.0
    asleep_seconds: float = 0.0
    wakes: int = 0
    cold_start: ColdStartStatus | None = None
    hazards: tuple[str, ...] = ()
    unseen: tuple[str, ...] = ()  #: reasons why use cannot be seen


class Judged(NamedTuple):
    """A verdict with its reasons."""

    verdict: str
    reasons: tuple[str, ...] = ()


def _unsafe(seen: Observation) -> tuple[str, ...]:
    return seen.hazards


def _unknown(seen: Observation) -> tuple[str, ...]:
    short = ("LessThanADay",) if seen.observed_seconds < DAY else ()
    started = ("ColdStartUnknown",) if seen.cold_start is None else ()
    return (*seen.unseen, *short, *started)


def _busy(seen: Observation) -> tuple[str, ...]:
    rare = seen.asleep_seconds < QUIET_SHARE * seen.observed_seconds
    return ("RarelyQuiet",) if rare else ()


def _slow(seen: Observation) -> tuple[str, ...]:
    assert seen.cold_start is not None
    waited = seen.wakes * seen.cold_start.p95 * DAY / seen.observed_seconds
    return ("PeopleWait",) if waited > WAITING_A_DAY else ()


class VerdictRow(NamedTuple):
    """One rule; `meaning` is printed in the documentation."""

    verdict: str
    meaning: str
    reasons: Callable[[Observation], tuple[str, ...]]


VERDICTS = (
    VerdictRow(
        "Unsafe",
        "the Service or its target cannot sleep, or would lose requests: host network, no readiness probe,"
        " strategy Recreate without a volume claim, a PodDisruptionBudget that forbids every disruption, a"
        " refusal of condition Ready",
        _unsafe,
    ),
    VerdictRow(
        "NotEnoughData",
        "triggers cannot see use, there is less than a day of data, or no cold start is known",
        _unknown,
    ),
    VerdictRow("TooBusy", f"asleep for less than {QUIET_SHARE:.0%} of the known time", _busy),
    VerdictRow(
        "TooSlow",
        f"wake-ups a day times the p95 of cold starts is above {WAITING_A_DAY:.0f} s",
        _slow,
    ),
)
"""The first row with a reason decides; without any, the verdict is Recommended."""
RECOMMENDED = "Recommended"

REASONS = {
    "HostNetwork": "its pods use the host's network; remove hostNetwork from the pod template",
    "NoReadinessProbe": "its pods have no readiness probe, so requests would reach them too early; add one",
    "RecreateStrategy": "its strategy is Recreate without a volume claim, so every wake-up waits for old"
    " pods to end; set the strategy RollingUpdate",
    "DisruptionBudget": "a PodDisruptionBudget forbids every disruption of its pods (minAvailable 100% or"
    " maxUnavailable 0); change the budget, or leave the target awake",
    "TrafficTrigger": "the trigger traffic needs the resolver in rotation, so it cannot be observed; use"
    " network or prometheus while you observe",
    "NoTriggers": "it has no trigger that could show use; add one to spec.triggers",
    "LessThanADay": "less than a day of data so far; wait",
    "ColdStartUnknown": "the start-up time is unknown; run kubectl rollout restart once",
    "RarelyQuiet": "it is rarely unused for a whole cooldown; shorten cooldownPeriod, or leave it awake",
    "PeopleWait": "people would wait too long for its cold starts; make it start faster, or keep it awake by"
    " a schedule while they work",
}
"""A sentence with a remedy for each reason of ours; other reasons are those of condition Ready."""


def judged(seen: Observation) -> Judged:
    """Return the verdict: that of the first row with reasons."""
    for row in VERDICTS:
        if reasons := row.reasons(seen):
            return Judged(row.verdict, reasons)
    return Judged(RECOMMENDED)


def explained(reasons: Iterable[str]) -> str:
    """Return reasons as sentences."""
    return "; ".join(REASONS.get(reason, f"{reason}: see condition Ready") for reason in reasons)


def cold_start(seconds: Sequence[float], basis: str = "Rollouts") -> ColdStartStatus | None:
    """Return quantiles (nearest rank) of starts; None without any that is one."""
    found = sorted(one for one in seconds if 0 <= one <= _LONGEST_START)
    if not found:
        return None
    p50, p95 = (found[math.ceil(share * len(found)) - 1] for share in (0.5, 0.95))
    return ColdStartStatus(p50, p95, basis)


def recommended(es: ElastiService) -> bool:
    """Whether it is observed, and the verdict is to let it sleep."""
    observed = es.status.observed
    return es.spec.observes and observed is not None and observed.verdict == RECOMMENDED


def quiet_share(observed: ObservedStatus) -> float:
    """Return the share of the known time for which it would have been asleep."""
    return min(observed.asleep_seconds / max(observed.observed_seconds, 1), 1.0)


def policy_patch(*, observe: bool) -> dict[str, dict[str, object]]:
    """Return what to merge into an ElastiService: both fields, for versions that know one of them."""
    return {"spec": {"policy": "Observe" if observe else "Enforce", "suspend": observe}}
