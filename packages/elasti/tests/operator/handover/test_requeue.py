"""When an ElastiService is reconciled again without an event: owed resumes, lost resolvers."""

from __future__ import annotations

import pytest
from tests.operator.states import service_state

from elasti.api.states import State
from elasti.api.types import ElastiService, ElastiServiceSpec, ScaleTargetRef
from elasti.operator.handover import plan as plans
from elasti.operator.handover.plan import requeue_after
from elasti.operator.model.facts import Facts
from elasti.operator.model.records import AutoscalerRef, retry_delay
from elasti.operator.model.state import ServiceState
from elasti.operator.settings import OnResolverLoss, OperatorSettings
from kubeloop.objects.meta import ObjectMeta

KEDA = AutoscalerRef("keda", "web")
RESUME = plans.ResumeAutoscaler(KEDA)
AWAKE = (State.SERVE, State.WAKING, State.RELEASING)


def facts(autoscaler: AutoscalerRef | None, now: float = 100.0) -> Facts:
    ref = ScaleTargetRef(kind="Deployment", api_version="apps/v1", name="web")
    es = ElastiService(metadata=ObjectMeta(name="web"), spec=ElastiServiceSpec(ref, "web"))
    return Facts(es=es, now=now, autoscaler=autoscaler)


def remembered(state: State, *, failures: int = 0, retry_at: float = 0.0) -> ServiceState:
    return service_state(state, failures=failures, retry_at=retry_at)


@pytest.mark.parametrize("state", State)
def test_keda_is_resumed_where_the_target_is_awake(state: State):
    writes = plans.plan(state, facts(KEDA), remembered(state))
    assert (RESUME in writes) is (state in AWAKE)
    assert RESUME not in plans.plan(state, facts(None), remembered(state))


@pytest.mark.parametrize("state", State)
def test_after_a_failure_it_waits_and_then_tries_again(state: State):
    known = remembered(state, failures=1, retry_at=107.0)
    assert RESUME not in plans.plan(state, facts(KEDA), known)
    pause = requeue_after(facts(KEDA), known, OperatorSettings(), now=100.0, lost_for=0.0)
    assert (pause == pytest.approx(7.0)) is (state in AWAKE)
    later = plans.plan(state, facts(KEDA, now=107.0), known)
    assert (RESUME in later) is (state in AWAKE)


@pytest.mark.parametrize("state", State)
def test_nothing_is_tried_again_if_nothing_is_owed(state: State):
    known = remembered(state, failures=3, retry_at=0.0)
    known.handover.drained_at = 100.0
    pause = requeue_after(facts(None), known, OperatorSettings(), now=100.0, lost_for=0.0)
    assert pause is None or pause > 1.0
    known.autoscaler.resumed = True
    pause = requeue_after(facts(KEDA), known, OperatorSettings(), now=100.0, lost_for=0.0)
    assert pause is None or pause > 1.0


def test_the_pauses_grow_to_a_minute():
    assert [retry_delay(number) for number in (1, 2, 3, 20)] == [0.5, 1.0, 2.0, 60.0]


@pytest.mark.parametrize(
    ("lost_for", "pause"), [(10.0, 20.0), (30.0, 0.01), (31.0, 0.01)], ids=["early", "due", "late"]
)
def test_a_lost_resolver_is_acted_on_also_where_the_grace_ends_meanwhile(
    lost_for: float, pause: float
):
    """Between the observation, which found it too early, and the end of the same reconcile."""
    state, settings = service_state(State.PROXY), OperatorSettings(resolver_loss_grace=30.0)
    assert requeue_after(facts(None), state, settings, now=100.0, lost_for=lost_for) == pause
    state.handover.loss_slot = 107.0
    assert requeue_after(facts(None), state, settings, now=100.0, lost_for=lost_for) == 7.0


def test_a_lost_resolver_that_is_waited_for_needs_no_reconcile():
    settings = OperatorSettings(on_resolver_loss=OnResolverLoss.WAIT)
    state = service_state(State.PROXY)
    for lost_for in (1.0, 100.0):
        pause = requeue_after(facts(None), state, settings, now=100.0, lost_for=lost_for)
        assert pause is None
