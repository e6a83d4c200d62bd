"""The search finds nothing in the hand-over as it is, and what was broken on purpose."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from unittest import mock

import pytest

from elasti.api.conditions import TransitionReason
from elasti.api.states import State
from elasti.operator.handover import machine
from elasti.operator.handover.machine import HOLDS, RULES, Rule
from elasti.operator.model.state import Activity, Park
from elasti.resolver.ports.claims import PortClaims, PortDecision
from tests.model import executor, leader, ports
from tests.model.search import Found, Search
from tests.model.world import Memory


@pytest.fixture(autouse=True)
def _fresh_cache() -> Iterator[None]:
    _clear()
    yield
    _clear()


def _clear() -> None:
    cached = (leader.decide, executor.activity, executor.park, executor.wakes_again)
    for one in (*cached, executor.listing, executor.published):
        one.cache_clear()


def test_no_order_of_three_events_breaks_the_hand_over():
    search = Search(faults=1)
    search.run(3)
    assert search.depth == 3
    assert search.states > 1000


def without(state: State, kept: Callable[[Rule], bool]) -> dict[State, tuple[Rule, ...]]:
    return {**RULES, state: tuple(rule for rule in RULES[state] if kept(rule))}


def test_a_park_without_asking_resolvers_is_found(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(executor, "combined_activity", lambda *_, **__: Activity.QUIET)
    with pytest.raises(Found, match="NeverParkedWithHeld"):
        Search(faults=0).run(6)


def test_a_busy_resolver_that_no_rule_heeds_still_keeps_the_executor_from_parking(
    monkeypatch: pytest.MonkeyPatch,
):
    """What it answered is use, so the executor finds before its write that the target is needed again."""
    heeded = (TransitionReason.TRAFFIC_ARRIVED, TransitionReason.RESOLVER_SILENT)
    rules = without(State.ENGAGING, lambda rule: rule.why not in heeded)
    monkeypatch.setattr(machine, "RULES", rules)
    Search(faults=0).run(4)
    decided = mock.Mock(
        return_value=executor.Parked(Memory(parked_here=True), wrote=True, asks=False)
    )
    monkeypatch.setattr(executor, "park", decided)
    leader.decide.cache_clear()
    with pytest.raises(Found, match="NeverParkedWithHeld"):
        Search(faults=0).run(6)


@pytest.mark.parametrize(("outcome", "parks"), [("ok", True), ("lost", True), ("failed", False)])
def test_a_park_that_was_done_and_not_answered_is_one(*, outcome: str, parks: bool):
    """Else the resolver would leave while the target is at zero, until the watch shows it."""
    park = executor.park(Memory(decided_on=1), executor.Seen(1, 1, idle=True), outcome)
    assert (park.wrote, park.asks) == (parks, parks)
    assert (park.memory.park is Park.REFUSED) is not parks


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
