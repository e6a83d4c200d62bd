"""One ElastiService as people see it: state, why it is not asleep, for how long. Pure.

Commands and pages show this value. Why a target is not asleep is what the operator reports in its
conditions: first what is wrong, then what keeps it from sleeping.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Mapping

from elasti.api.conditions import MAY_SLEEP, READY, Obstacle, Reason
from elasti.api.dependencies import DependencyGraph
from elasti.api.states import NOT_READY, OBSERVED, State, state_word
from elasti.api.types import ElastiService, StatusCondition
from kubeloop.objects.meta import JsonObject, ObjectName
from kubeloop.objects.times import format_time, parse_time


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ElastiServiceRow:
    """One ElastiService. `held` is None if no resolver could be asked.

    `values`: the present values of triggers, by index in spec.triggers, if an operator could be asked.

    `since`: when the condition that `why` is from began to hold; of a target that sleeps, when
    the last obstacle ended.
    """

    namespace: str
    name: str
    service: str
    mode: str
    state: str
    target: str
    replicas: int | None
    held: int | None
    last_wake: dt.datetime | None
    ready: str
    cooldown: int
    why: Obstacle
    since: dt.datetime | None
    values: Mapping[int, float]

    def to_json(self) -> JsonObject:
        """Return it for scripts; the names of these fields stay."""
        return {
            "namespace": self.namespace,
            "name": self.name,
            "service": self.service,
            "mode": self.mode,
            "state": self.state,
            "target": self.target,
            "replicas": self.replicas,
            "held": self.held,
            "lastWake": format_time(self.last_wake) if self.last_wake else None,
            "ready": self.ready,
            "cooldownSeconds": self.cooldown,
            "whyNotAsleep": {
                "reason": self.why.reason,
                "message": self.why.message,
                "until": time_text(self.why.until),
            },
            "since": format_time(self.since) if self.since else None,
            "triggerValues": {str(index): value for index, value in self.values.items()},
        }


def row_of(
    es: ElastiService,
    held: Mapping[tuple[str, str], int] | None,
    values: Mapping[str, Mapping[int, float]] | None = None,
) -> ElastiServiceRow:
    """Return what to show of an ElastiService."""
    meta, status, ref = es.metadata, es.status, es.spec.scale_target_ref
    ready = condition(es, READY)
    telling = _telling(es)
    count = held.get((meta.namespace, es.spec.service), 0) if held is not None else None
    # Status says so some seconds later, if it takes that long.
    shown = state_word(State.WAKING) if count and status.state == State.PROXY else shown_state(es)
    return ElastiServiceRow(
        namespace=meta.namespace,
        name=meta.name,
        service=es.spec.service,
        mode=status.mode,
        state=shown,
        target=f"{ref.kind}/{ref.name}",
        replicas=status.replicas if status.state else None,
        held=count,
        last_wake=moment(status.last_scaled_up_time),
        ready=ready.status if ready else "",
        cooldown=int(es.spec.cooldown),
        why=why_of(es),
        since=moment(telling.last_transition_time) if telling else None,
        values=(values or {}).get(f"{meta.namespace}/{meta.name}", {}),
    )


def shown_state(es: ElastiService) -> str:
    """Return its state in a word; "" before the operator has reported one."""
    doze = es.status.doze.state if es.status.doze is not None else ""
    state = state_word(es.status.state, doze) or (NOT_READY if es.status.conditions else "")
    return OBSERVED if es.spec.observes and es.status.state == State.SERVE else state


def dependency_tree(es: ElastiService, others: Mapping[str, ElastiService]) -> list[str]:
    """Return what an ElastiService depends on, a line for each, with its state; `others` by name.

    What several parts need has a line under each; what it needs in turn is below the first of them. An entry that
    the operator ignores is shown as ignored.
    """
    known = {**others, es.metadata.name: es}
    graph = DependencyGraph(lambda one: one.name in known)
    for name, other in known.items():
        graph.put(ObjectName("", name), tuple(one.name for one in other.spec.depends_on))
    lines: list[str] = []
    expanded: set[str] = set()

    def add(name: str, depth: int) -> None:
        followed = {one.name for one in graph.dependencies(ObjectName("", name))}
        for one in known[name].spec.depends_on:
            counts = one.name in followed
            state = shown_state(known[one.name]) or NOT_READY if counts else "ignored"
            lines.append(f"{'  ' * depth}{one.name}: {state}")
            if counts and one.name not in expanded:
                expanded.add(one.name)
                add(one.name, depth + 1)

    add(es.metadata.name, 0)
    return lines


def worker_lines(es: ElastiService) -> list[str]:
    """Return the workloads that sleep and wake with an ElastiService's target, a line for each.

    An entry that the operator ignores is shown as ignored: its message about it begins with the field.
    """
    asleep = {(one.kind, one.name): one for one in es.status.targets}
    ready, lines = condition(es, READY), []
    for index, one in enumerate(es.spec.targets):
        noted = asleep.get((one.kind, one.name))
        is_ignored = ready is not None and f"spec.targets[{index}] names" in ready.message
        state = "ignored" if is_ignored else "awake"
        state = f"asleep, wakes with {noted.replicas}" if noted and noted.asleep else state
        lines.append(f"{one.kind}/{one.name}: {state}")
    return lines


def why_of(es: ElastiService) -> Obstacle:
    """Return why its target is not asleep, as the operator reports it; empty if it is."""
    if es.metadata.deletion_timestamp:
        return Obstacle(Reason.DELETING, "the ElastiService is being deleted")
    if not es.status.conditions:
        return Obstacle(
            Reason.NOT_SEEN, "no operator has reconciled it yet; elasti doctor says why"
        )
    telling = _telling(es)
    if telling is None:
        asleep = es.status.mode == "proxy" and not es.status.replicas
        older = Obstacle(Reason.NOT_REPORTED, "the operator is older than this command")
        return Obstacle() if asleep else older
    if telling.reason in (Reason.ASLEEP, Reason.DOZING):
        return Obstacle()
    end = moment(es.status.awake_until) if telling.type == MAY_SLEEP else None
    return Obstacle(telling.reason, telling.message, end.timestamp() if end else None)


def _telling(es: ElastiService) -> StatusCondition | None:
    """Return the condition that says why: Ready if it is False, else MaySleep."""
    ready = condition(es, READY)
    return ready if ready is not None and ready.status == "False" else condition(es, MAY_SLEEP)


def condition(es: ElastiService, kind: str) -> StatusCondition | None:
    """Return a condition by its type."""
    return next((entry for entry in es.status.conditions if entry.type == kind), None)


def time_text(seconds: float | None) -> str | None:
    """Write a moment, in seconds since 1970, as status does."""
    return None if seconds is None else format_time(dt.datetime.fromtimestamp(seconds, dt.UTC))


def moment(text: str | None) -> dt.datetime | None:
    """Parse a time from status; None if it is absent or invalid."""
    try:
        return parse_time(text) if text else None
    except ValueError:
        return None
