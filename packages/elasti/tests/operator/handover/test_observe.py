"""What the state machine sees of pods that a park stops."""

from __future__ import annotations

from tests.operator.states import service_state

from elasti.api.conditions import TransitionReason
from elasti.api.states import State
from elasti.api.types import ElastiService, ElastiServiceSpec, ScaleTargetRef
from elasti.operator.handover.machine import Transition, step
from elasti.operator.handover.observe import observation_of
from elasti.operator.model.facts import Facts
from elasti.operator.model.state import Park, ServiceState
from elasti.operator.settings import OperatorSettings
from kubeloop.objects.meta import ObjectMeta

SPEC = ElastiServiceSpec(
    service="web", scale_target_ref=ScaleTargetRef("apps/v1", "Deployment", "web")
)
ES = ElastiService(metadata=ObjectMeta(name="web", namespace="shop"), spec=SPEC)


def next_step(state: ServiceState, ready: frozenset[str], now: float = 0.0) -> Transition:
    assert state.current is not None
    facts = Facts(es=ES, now=now, ready=ready)
    return step(state.current, observation_of(facts, state, OperatorSettings(release_settle=5.0)))


def test_a_park_that_another_writer_undoes_keeps_the_resolver_until_other_pods_are_ready():
    old, new = frozenset({"pod-1"}), frozenset({"pod-2"})
    state = service_state(State.PARKING, park=Park.REFUSED)
    state.handover.note_parked("t", old)
    assert next_step(state, old) == (State.WAKING, TransitionReason.NOT_PARKED)
    state.enter(State.WAKING, "")
    assert next_step(state, old | new).state is State.WAKING
    state.handover.ready_since = {"pod-2": 0.0}
    assert next_step(state, old | new, 5.0).state is State.RELEASING


def test_pods_that_outlive_a_park_count_once_they_were_ready_for_the_settle():
    old = frozenset({"pod-1"})
    state = service_state(State.WAKING, stopping=old, ready_since={"pod-1": 0.0})
    assert next_step(state, old, 5.0).state is State.RELEASING
    state.enter(State.RELEASING, "")
    assert next_step(state, old, 6.0).state is State.SERVE


def test_a_park_that_was_not_written_is_given_up_at_once():
    state = service_state(State.PARKING, park=Park.REFUSED)
    assert next_step(state, frozenset({"pod-1"})).state is State.RELEASING
