"""The search finds nothing in the hand-over as it is, and what was broken on purpose."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from elasti.api.conditions import TransitionReason
from elasti.api.states import State
from elasti.operator.handover import machine
from elasti.operator.handover.machine import HOLDS, RULES, Rule
from elasti.resolver.ports.claims import PortClaims, PortDecision
from tests.model import leader, ports
from tests.model.search import Found, Search


@pytest.fixture(autouse=True)
def _fresh_cache() -> Iterator[None]:
    leader.decide.cache_clear()
    yield
    leader.decide.cache_clear()


def test_no_order_of_three_events_breaks_the_hand_over():
    search = Search(faults=1)
    search.run(3)
    assert search.depth == 3
    assert search.states > 1000


def without(state: State, kept: Callable[[Rule], bool]) -> dict[State, tuple[Rule, ...]]:
    return {**RULES, state: tuple(rule for rule in RULES[state] if kept(rule))}


def test_a_park_without_asking_resolvers_is_found(monkeypatch: pytest.MonkeyPatch):
    asked = (TransitionReason.TRAFFIC_ARRIVED, TransitionReason.RESOLVER_SILENT)
    rules = without(State.ENGAGING, lambda rule: rule.why not in asked)
    monkeypatch.setattr(machine, "RULES", rules)
    with pytest.raises(Found, match="NeverParkedWithHeld"):
        Search(faults=0).run(6)


def test_a_sleep_without_the_resolver_in_rotation_is_found(monkeypatch: pytest.MonkeyPatch):
    broken = {**HOLDS, State.PROXY: HOLDS[State.SERVE]}
    monkeypatch.setattr("elasti.operator.handover.plan.HOLDS", broken)
    with pytest.raises(Found, match="NeverNobodyInRotation"):
        Search(faults=0).run(6)


def test_a_target_that_nothing_wakes_is_found(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(machine, "RULES", {**RULES, State.PROXY: ()})
    with pytest.raises(Found, match="BecomesStable"):
        Search(faults=0).run(6)


def test_the_way_to_a_broken_state_is_printed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(machine, "RULES", {**RULES, State.PROXY: ()})
    with pytest.raises(Found) as found:
        Search(faults=0).run(6)
    assert found.value.way[0].startswith("point")
    assert all(found.value.way)


def test_no_order_of_two_claims_gives_a_port_to_another():
    assert ports.search(30) == ports.search(31) > 15


def test_a_port_of_another_service_is_found(monkeypatch: pytest.MonkeyPatch):
    def newest(self: PortClaims, port: int) -> PortDecision:
        return PortDecision(next(reversed(self._claims.get(port, {None: None}).values())))

    monkeypatch.setattr(PortClaims, "_decided", newest)
    with pytest.raises(leader.Broken, match=r"NoPortOfAnotherService|OwnerKeepsItsPort"):
        ports.search(8)
