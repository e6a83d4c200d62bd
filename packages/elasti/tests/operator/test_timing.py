"""When to look again at KEDA: soon, ever later, and never where nothing is owed."""

from __future__ import annotations

import pytest

from elasti.api.types import AutoscalerSpec, ElastiService, ElastiServiceSpec, ScaleTargetRef
from elasti.operator.handover import plan as plans
from elasti.operator.handover.machine import State
from elasti.operator.handover.observe import Facts
from elasti.operator.handover.plan import keda_retry_delay, requeue_after
from elasti.operator.handover.state import ServiceState
from elasti.operator.settings import OperatorSettings
from kubeloop.objects.meta import ObjectMeta

KEDA = AutoscalerSpec(name="web", type="keda")
AWAKE = (State.SERVE, State.WAKING, State.RELEASING)


def facts(autoscaler: AutoscalerSpec | None, now: float = 100.0) -> Facts:
    spec = ElastiServiceSpec(
        scale_target_ref=ScaleTargetRef(kind="Deployment", api_version="apps/v1", name="web"),
        service="web",
        autoscaler=autoscaler,
    )
    return Facts(es=ElastiService(metadata=ObjectMeta(name="web"), spec=spec), now=now)


def remembered(state: State, *, failures: int = 0, again: float = 0.0) -> ServiceState:
    memory = ServiceState("u", "web")
    memory.state, memory.keda_failures, memory.keda_again = state, failures, again
    return memory


@pytest.mark.parametrize("state", State)
def test_keda_is_resumed_where_the_target_is_awake(state: State):
    writes = plans.plan(state, facts(KEDA), remembered(state))
    assert (plans.ResumeKeda("web") in writes) is (state in AWAKE)
    assert plans.ResumeKeda("web") not in plans.plan(state, facts(None), remembered(state))


@pytest.mark.parametrize("state", State)
def test_after_a_failure_it_waits_and_then_tries_again(state: State):
    memory = remembered(state, failures=1, again=107.0)
    assert plans.ResumeKeda("web") not in plans.plan(state, facts(KEDA), memory)
    looks = requeue_after(facts(KEDA), memory, OperatorSettings(), now=100.0, lost_for=0.0)
    assert (looks == pytest.approx(7.0)) is (state in AWAKE)
    later = plans.plan(state, facts(KEDA, now=107.0), memory)
    assert (plans.ResumeKeda("web") in later) is (state in AWAKE)


@pytest.mark.parametrize("state", State)
def test_nothing_is_looked_at_again_where_nothing_is_owed(state: State):
    memory = remembered(state, failures=3, again=0.0)
    for found in (facts(None), facts(AutoscalerSpec(name="web", type="hpa"))):
        looks = requeue_after(found, memory, OperatorSettings(), now=100.0, lost_for=0.0)
        assert looks is None or looks > 1.0
    memory.keda_resumed = True
    looks = requeue_after(facts(KEDA), memory, OperatorSettings(), now=100.0, lost_for=0.0)
    assert looks is None or looks > 1.0


def test_the_pauses_grow_to_a_minute():
    assert [keda_retry_delay(number) for number in (1, 2, 3, 20)] == [0.5, 1.0, 2.0, 60.0]
