"""The writes that a state asks for."""

from __future__ import annotations

import pytest
from tests.operator.states import service_state
from tests.operator.values import READY, WEB, elastiservice, target

from elasti.api.states import State
from elasti.operator.handover import plan as plans
from elasti.operator.handover.machine import HOLDS
from elasti.operator.model.children import (
    resolver_slices,
)
from elasti.operator.model.facts import Facts
from kubeloop.objects.core import (
    ServiceEndpoint,
)


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("replicas", [0, 1, 3])
def test_a_plan_brings_about_what_its_state_holds(state: State, replicas: int):
    (piece,) = resolver_slices(WEB, [ServiceEndpoint(("10.1.0.1",), READY)], {80: 1, 5432: 2})
    es = elastiservice(min_target_replicas=2)
    facts = Facts(es=es, now=0.0, service=WEB, target=target(replicas), slices=(piece,))
    kinds = [type(write) for write in plans.plan(state, facts, service_state())]
    holds = HOLDS[state]
    assert (plans.PublishSlices in kinds) is holds.slice
    assert (plans.RemoveSlices in kinds) is not holds.slice
    assert (plans.Wake in kinds) is (state is State.WAKING and replicas < 2)
    assert (plans.ParkTarget in kinds) is (state is State.PARKING and replicas > 0)
    if plans.PublishSlices in kinds:
        assert kinds.index(plans.PublishSlices) == 0, "what takes traffic is there first"
    if plans.RemoveSlices in kinds:
        assert kinds[-1] is plans.RemoveSlices
