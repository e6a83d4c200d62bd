"""How often `traffic` lets a target sleep that is used: the arithmetic of the guide, and a simulation of it.

The simulation asks the operator's own decision and its table of states; the cluster around them is arithmetic:
which arrivals reach a resolver, and when the leader looks at what.
"""

from __future__ import annotations

import math
import random
import re
from pathlib import Path
from typing import NamedTuple

import pytest

from elasti.api.states import State
from elasti.api.triggers.cluster import TrafficMetadata
from elasti.operator.handover.machine import Observation, step
from elasti.operator.idleness.decide import Evidence, Situation, decide
from elasti.operator.model.facts import Verdict
from elasti.operator.model.state import Activity
from elasti.triggers.reader import TriggerReading

GUIDE = Path(__file__).parents[5] / "docs" / "guide" / "triggers.md"
COOLDOWN, SETTLE, POLL, EVERY = 900.0, 15.0, 30.0, 60.0
WINDOW = TrafficMetadata().look_seconds


# Requests come at moments of their own, not with the operator's.
_PHASE = 7.0


class Outcome(NamedTuple):
    looks: int
    sleeps: int


def missed(resolvers: int, pods: int, arrivals: int) -> float:
    """The probability that a resolver gets none of so many new connections."""
    return (pods / (pods + resolvers)) ** arrivals


def arrivals_after(now: float, count: int) -> list[float]:
    first = math.floor((now - _PHASE) / EVERY) + 1
    return [EVERY * number + _PHASE for number in range(first, first + count)]


class Simulation:
    """One target with a request every `EVERY` seconds, each on a connection of its own."""

    def __init__(self, resolvers: int, pods: int, seed: int) -> None:
        self._share = resolvers / (resolvers + pods)
        self._random = random.Random(seed)
        self._last_use = 0.0

    def run(self, hours: int) -> Outcome:
        now, looks, sleeps = 0.0, 0, 0
        while now < hours * 3600:
            now = self._next_look(now)
            looks += 1
            now, slept = self._look(now)
            if slept:
                sleeps += 1
                # Asleep, everything arrives at the resolver: the next request wakes the target.
                now = arrivals_after(now, 1)[0]
            self._last_use = now
        return Outcome(looks, sleeps)

    def _decide(self, now: float, *, looking: bool) -> Verdict:
        reading, since = TriggerReading(0.0), self._last_use
        evidence = Evidence(1.0, reading, read_at=now, known_at=now, quiet_since=since)
        return decide(
            Situation(
                now=now,
                cooldown=COOLDOWN,
                created_at=0.0,
                last_traffic=self._last_use,
                triggers=(evidence,),
                look=WINDOW,
                looking=looking,
            )
        ).verdict

    def _next_look(self, now: float) -> float:
        now = self._last_use + COOLDOWN - WINDOW - POLL
        while self._decide(now, looking=False) is not Verdict.LOOK:
            now += POLL
        return now

    def _look(self, began: float) -> tuple[float, bool]:
        """Return when a look ends, and whether the target sleeps then."""
        arrivals = arrivals_after(began, round(WINDOW / EVERY))
        seen = [at for at in arrivals if self._random.random() < self._share]
        # In between nothing changes: the first ask after an arrival, or the one at the end.
        asks = math.ceil((min([*seen, began + WINDOW]) - began) / SETTLE)
        now, state = began + (asks - 1) * SETTLE, State.ENGAGING
        while state is State.ENGAGING:
            now += SETTLE
            verdict = self._decide(now, looking=True)
            busy = any(at < now for at in seen)
            observation = Observation(
                at_zero=False,
                ready=True,
                ready_settled=True,
                slice=True,
                engage_settled=now - began >= WINDOW and verdict is Verdict.SLEEP,
                resolver=True,
                may_sleep=verdict in (Verdict.SLEEP, Verdict.LOOK),
                wake_wanted=verdict is Verdict.WAKE,
                unused=False,
                activity=Activity.BUSY if busy else Activity.QUIET,
            )
            state = step(state, observation).state
        return now, state is State.PARKING


def test_the_guides_table_is_the_arithmetic():
    rows = re.findall(
        r"^\| (\d+) \| (\d+) \| (\d+) \| ([\d.]+) % \|", GUIDE.read_text(), re.MULTILINE
    )
    assert len(rows) >= 4
    for resolvers, pods, arrivals, percent in rows:
        expected = 100 * missed(int(resolvers), int(pods), int(arrivals))
        assert float(percent) == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize(("resolvers", "pods", "hours"), [(2, 1, 1000), (1, 3, 100)])
def test_a_used_target_sleeps_exactly_as_often_as_the_arithmetic_says(
    resolvers: int, pods: int, hours: int
):
    found = Simulation(resolvers, pods, seed=7).run(hours)
    chance = missed(resolvers, pods, round(WINDOW / EVERY))
    expected = found.looks * chance
    assert abs(found.sleeps - expected) <= 3 * math.sqrt(expected * (1 - chance))
    assert found.looks <= hours * 3600 / (COOLDOWN - WINDOW)
    if hours == 1000:
        stated = re.search(r"about (\d+) times in 1 000 hours", GUIDE.read_text())
        assert stated is not None
        assert int(stated[1]) == pytest.approx(expected, abs=2)


def test_an_unused_target_sleeps_at_the_end_of_its_cooldown():
    simulation = Simulation(1, 10**9, seed=7)
    began = simulation._next_look(0.0)
    ended, slept = simulation._look(began)
    assert slept
    assert COOLDOWN <= ended <= COOLDOWN + POLL + SETTLE
