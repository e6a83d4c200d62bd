"""One ElastiService as people see it: state, why it is not asleep, since when. Pure.

Commands and pages show this value. Why a target is not asleep is what the operator reports in its
conditions: first what is not in order, then what keeps it from sleeping.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, NamedTuple

from elasti.api.conditions import MAY_SLEEP, READY, Obstacle, Reason
from elasti.api.defaults import cooldown_of
from kubeloop.objects.times import format_time, parse_time

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Mapping

    from elasti.api.types import ElastiService, StatusCondition
    from kubeloop.objects.meta import JsonObject


class StateText(NamedTuple):
    """A state of the hand-over for people: a word, and what it means."""

    word: str
    meaning: str

    def __str__(self) -> str:
        return f"{self.word}: {self.meaning}"


# The names of the state machine stand in `elasti describe`, and nowhere else.
STATES = {
    "Serve": StateText("awake", "traffic goes straight to its pods"),
    "Engaging": StateText("going to sleep", "the resolver joins the pods for a last check"),
    "Draining": StateText("going to sleep", "its pods are out of rotation for a last check"),
    "Parking": StateText("going to sleep", "no request came; its replicas are set to 0"),
    "Proxy": StateText("asleep", "the resolver takes its traffic"),
    "Waking": StateText("waking", "no pod is ready yet; the resolver holds what arrives"),
    "Releasing": StateText("awake", "pods are ready; the resolver leaves"),
}


def phase_of(state: str) -> str:
    """Return a state as status has it: its word, as machines write words."""
    return state_word(state).title().replace(" ", "")


def state_word(state: str) -> str:
    """Return a state in a user's word; as it is where it is none that we know."""
    return STATES[state].word if state in STATES else state


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ElastiServiceRow:
    """One ElastiService. `held` is None where no resolver could be asked.

    `values`: what triggers show now, by their place in the spec, where an operator could be asked.

    `since`: when the condition that `why` is from began to hold; of a target that sleeps, since when
    nothing has been in the way.
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
            "whyNotAsleep": {"reason": self.why.reason, "message": self.why.message},
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
    return ElastiServiceRow(
        namespace=meta.namespace,
        name=meta.name,
        service=es.spec.service,
        mode=status.mode,
        state=state_word(status.state),
        target=f"{ref.kind}/{ref.name}",
        replicas=status.replicas if status.state else None,
        held=held.get((meta.namespace, es.spec.service), 0) if held is not None else None,
        last_wake=moment(status.last_scaled_up_time),
        ready=ready.status if ready else "",
        cooldown=int(cooldown_of(es.spec)),
        why=why_of(es),
        since=moment(telling.last_transition_time) if telling else None,
        values=(values or {}).get(f"{meta.namespace}/{meta.name}", {}),
    )


def why_of(es: ElastiService) -> Obstacle:
    """Return why its target is not asleep, as the operator reports it; empty where it is."""
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
    asleep = telling.reason == Reason.ASLEEP
    return Obstacle() if asleep else Obstacle(telling.reason, telling.message)


def _telling(es: ElastiService) -> StatusCondition | None:
    """Return the condition that says why: Ready where it is False, or else MaySleep."""
    ready = condition(es, READY)
    return ready if ready is not None and ready.status == "False" else condition(es, MAY_SLEEP)


def condition(es: ElastiService, kind: str) -> StatusCondition | None:
    """Return a condition by its type."""
    return next((entry for entry in es.status.conditions if entry.type == kind), None)


def moment(text: str | None) -> dt.datetime | None:
    """Read a time of status; None where there is none, or it cannot be read."""
    try:
        return parse_time(text) if text else None
    except ValueError:
        return None
