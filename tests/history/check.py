"""The rules that a history must keep. Pure.

Each rule is a function with a name; it returns a sentence for each event that breaks it.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from tests.history.events import Answer, Call, Event, Excused, Executed, Pod, Rotation, Scaled

# A watch reports a write this much later at most, and processes read their clocks apart.
LATE = 0.5
# The changes that one list brings are heard one after the other, the deletions first.
ONE_LIST = 0.01


@dataclasses.dataclass(frozen=True, slots=True)
class Violation:
    """A rule, and how it was broken."""

    rule: str
    at: float
    what: str


class History:
    """A history by kind of event, each in order."""

    def __init__(self, events: Iterable[Event]) -> None:
        ordered = sorted(events, key=lambda event: event.at)
        self.calls = {event.id: event for event in ordered if isinstance(event, Call)}
        self.answers = {event.id: event for event in ordered if isinstance(event, Answer)}
        self.scales = [event for event in ordered if isinstance(event, Scaled)]
        self.rotations = [event for event in ordered if isinstance(event, Rotation)]
        self._excuses = [event for event in ordered if isinstance(event, Excused)]
        self.executions: defaultdict[str, list[Executed]] = defaultdict(list)
        self.phases: defaultdict[str, dict[str, float]] = defaultdict(dict)
        for event in ordered:
            if isinstance(event, Executed):
                self.executions[event.id].append(event)
            elif isinstance(event, Pod):
                phases = self.phases[event.name]
                # A StatefulSet's pod comes back under its name.
                phases.pop("gone", None)
                phases.setdefault(event.phase, event.at)

    def excused(self, began: float, ended: float) -> bool:
        """Whether something broken on purpose overlaps a time."""
        return any(one.at <= ended and began <= one.until for one in self._excuses)


Rule = Callable[[History], Iterator[tuple[float, str]]]


def answered(history: History) -> Iterator[tuple[float, str]]:
    """Every call has a good answer."""
    for call in history.calls.values():
        answer = history.answers.get(call.id)
        if answer is None:
            yield call.at, f"{call.id} has no answer"
        elif answer.fault and not history.excused(call.at, answer.at):
            yield answer.at, f"{call.id} failed: {answer.fault}"


def at_most_once(history: History) -> Iterator[tuple[float, str]]:
    """No request is executed twice, not even one that failed.

    But for one whose pod ended without an answer: a proxy may repeat it if its method is idempotent (RFC 9110, 9.2.2).
    The prober's own books hold those that are not.
    """
    for name, executions in history.executions.items():
        for one, later in itertools.pairwise(executions):
            if history.phases.get(one.pod, {}).get("gone", math.inf) > later.at:
                pods = ", ".join(each.pod for each in executions)
                yield executions[-1].at, f"{name} was executed by {pods}"
                break


def answered_by_its_executor(history: History) -> Iterator[tuple[float, str]]:
    """An answer names the pod that executed the request, and that one existed."""
    for answer in history.answers.values():
        if answer.fault:
            continue
        pods = [one.pod for one in history.executions.get(answer.id, ())]
        if pods[-1:] != [answer.pod]:
            yield answer.at, f"{answer.id} was answered by {answer.pod}, executed by {pods}"
        phases = history.phases.get(answer.pod, {})
        call = history.calls.get(answer.id)
        if not phases or min(phases.values()) > answer.at + LATE:
            yield answer.at, f"{answer.id} was answered by {answer.pod}, which was not there"
        elif call is not None and phases.get("gone", answer.at) < call.at - LATE:
            yield answer.at, f"{answer.id} was answered by {answer.pod}, which was gone"


def never_parked_while_held(history: History) -> Iterator[tuple[float, str]]:
    """Nothing is scaled to zero while a proxy holds a request for it.

    A request that came in the last moment before the write may be held: then it is woken again.
    """
    held = _held(history)
    for scale in history.scales:
        if scale.replicas or history.excused(scale.at, scale.at):
            continue
        for call, answer in held.get(scale.service, ()):
            assert answer.held is not None
            if call.at + LATE < scale.at < call.at + answer.held - LATE:
                yield scale.at, f"{scale.service} was scaled to zero while {call.id} was held"


def _held(history: History) -> Mapping[str, Sequence[tuple[Call, Answer]]]:
    found: defaultdict[str, list[tuple[Call, Answer]]] = defaultdict(list)
    for name, answer in history.answers.items():
        call = history.calls.get(name)
        if answer.held is not None and call is not None:
            found[call.service].append((call, answer))
    return found


def rotation_never_empty(history: History) -> Iterator[tuple[float, str]]:
    """From its first endpoint to its last call, a Service has an endpoint."""
    last: dict[str, float] = {}
    for call in history.calls.values():
        last[call.service] = max(last.get(call.service, 0.0), call.at)
    turns: defaultdict[str, list[Rotation]] = defaultdict(list)
    for turn in history.rotations:
        turns[turn.service].append(turn)
    for service, seen in turns.items():
        first = next((at for at, turn in enumerate(seen) if turn.endpoints), len(seen))
        for turn, after in itertools.zip_longest(seen[first:], seen[first + 1 :]):
            empty = turn.endpoints == 0 and (after is None or after.at - turn.at > ONE_LIST)
            if empty and turn.at < last.get(service, 0.0) and not history.excused(turn.at, turn.at):
                yield turn.at, f"{service} had no endpoint"


RULES: Mapping[str, Rule] = {
    rule.__name__: rule
    for rule in (
        answered,
        at_most_once,
        answered_by_its_executor,
        never_parked_while_held,
        rotation_never_empty,
    )
}


def check(events: Iterable[Event]) -> list[Violation]:
    """Return what breaks a rule, in the order of time."""
    history = History(events)
    found = [
        Violation(name, at, what) for name, rule in RULES.items() for at, what in rule(history)
    ]
    return sorted(found, key=lambda one: one.at)
