"""Whose a resolver port is."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasti.resolver.ports.claims import PortClaim, PortClaims
from elasti.resolver.projections import ServiceKey
from elasti.resolver.proxy.upstream.interface import PortProtocol

A, B = ServiceKey("x", "a"), ServiceKey("x", "b")


def claim(key, age="1", *, reported=True):
    return PortClaim(
        key=key,
        port_name="http",
        protocol=PortProtocol.HTTP,
        age=(age, f"uid-{key}"),
        reported=reported,
    )


def owner(claims, port, now=0.0):
    found = claims.decide(port, now=now).claim
    return found.key if found else None


def test_the_only_claim_of_a_port_owns_it():
    claims = PortClaims(settle=15)
    assert claims.claim(A, {20000: claim(A)}) == {20000}
    assert owner(claims, 20000) == A
    assert owner(claims, 20001) is None


def test_a_port_that_was_left_is_free_at_the_time_that_was_named():
    """`recheck_at` rounds: a decision that only named the same time again would be made without end."""
    for gone in (n * 0.1 for n in range(1, 400)):
        claims = PortClaims(settle=5.3)
        claims.claim(A, {20000: claim(A)})
        claims.publish(A, frozenset({20000}), now=0)
        claims.publish(A, frozenset(), now=gone)
        claims.claim(A, {})
        at = claims.decide(20000, now=gone).recheck_at
        assert at is not None
        assert claims.decide(20000, now=at) == (None, None)


def test_the_older_of_two_claims_owns_the_port():
    claims = PortClaims(settle=15)
    claims.claim(B, {20000: claim(B, "2")})
    claims.claim(A, {20000: claim(A, "1")})
    assert owner(claims, 20000) == A
    assert claims.claim(A, {}) == {20000}
    assert owner(claims, 20000) == B


@pytest.mark.parametrize("age", ["0", "2"])
def test_a_freed_port_is_its_old_owners_while_a_slice_points_at_it_and_until_that_has_settled(age):
    claims = PortClaims(settle=15)
    claims.claim(A, {20000: claim(A)})
    claims.publish(A, frozenset({20000}), now=0)
    assert claims.claim(A, {}) == {20000}
    claims.claim(B, {20000: claim(B, age)})
    assert claims.decide(20000, now=1) == (claim(A), None)
    assert claims.publish(A, frozenset(), now=100) == {20000}
    assert claims.decide(20000, now=100) == (claim(A), 115)
    assert owner(claims, 20000, now=114.9) == A
    assert claims.has_any(A)
    assert owner(claims, 20000, now=115) == B
    assert not claims.has_any(A)


def test_a_port_has_no_owner_while_another_services_slice_points_at_it():
    claims = PortClaims(settle=15)
    claims.claim(A, {20000: claim(A, "2")})
    claims.publish(A, frozenset({20000}), now=0)
    claims.claim(B, {20000: claim(B)})
    assert claims.decide(20000, now=1) == (None, None)
    claims.publish(A, frozenset(), now=100)
    assert claims.decide(20000, now=100) == (None, 115)
    assert owner(claims, 20000, now=115) == B


def test_its_own_slice_never_keeps_a_service_from_its_port():
    claims = PortClaims(settle=15)
    claims.publish(A, frozenset({20000}), now=0)
    claims.claim(A, {20000: claim(A)})
    assert owner(claims, 20000, now=0) == A
    claims.publish(A, frozenset(), now=1)
    assert owner(claims, 20000, now=1) == A


def test_a_service_that_moves_keeps_its_old_port_until_that_has_settled():
    claims = PortClaims(settle=15)
    claims.claim(A, {20000: claim(A)})
    claims.publish(A, frozenset({20000}), now=0)
    claims.publish(A, frozenset({20001}), now=100)
    assert claims.claim(A, {20001: claim(A)}) == {20000, 20001}
    assert claims.decide(20000, now=100) == (claim(A), 115)
    assert claims.claim(A, {20001: claim(A)}) == {20000}
    assert owner(claims, 20000, now=114.9) == A
    assert owner(claims, 20000, now=115) is None
    assert list(claims.ports) == [20001]
    claims.publish(A, frozenset(), now=200)
    assert owner(claims, 20001, now=300) == A
    assert claims.claim(A, {}) == {20001}
    assert not claims.ports


def test_a_service_that_goes_while_it_moves_keeps_what_nodes_may_still_use():
    claims = PortClaims(settle=15)
    claims.claim(A, {20000: claim(A)})
    claims.publish(A, frozenset({20000}), now=0)
    claims.publish(A, frozenset({20001}), now=100)
    claims.claim(A, {20001: claim(A)})
    assert claims.claim(A, {}) == {20000, 20001}
    assert owner(claims, 20000, now=101) == owner(claims, 20001, now=101) == A
    claims.claim(B, {20000: claim(B)})
    assert owner(claims, 20000, now=114) == A
    assert owner(claims, 20000, now=115) == B
    claims.publish(A, frozenset(), now=200)
    assert owner(claims, 20001, now=214) == A
    assert owner(claims, 20001, now=215) is None
    assert not claims.has_any(A)


def test_a_slice_that_comes_back_restarts_the_settling():
    claims = PortClaims(settle=15)
    claims.claim(A, {20000: claim(A, "2")})
    claims.publish(A, frozenset({20000}), now=0)
    claims.publish(A, frozenset(), now=10)
    claims.publish(A, frozenset({20000}), now=12)
    claims.claim(B, {20000: claim(B)})
    assert owner(claims, 20000, now=30) is None


@pytest.mark.parametrize("age", ["0", "2"], ids=["older", "younger"])
def test_a_withdrawn_claim_is_looked_at_again_when_it_has_settled(age):
    claims = PortClaims(settle=15)
    claims.claim(A, {20000: claim(A, "1")})
    claims.publish(A, frozenset({20000}), now=0)
    claims.publish(B, frozenset({20000}), now=1)
    claims.claim(B, {20000: claim(B, age)})
    claims.claim(B, {})
    claims.publish(B, frozenset(), now=2)
    assert claims.decide(20000, now=3) == (None, 17)
    assert claims.decide(20000, now=17) == (claim(A), None)


@pytest.mark.parametrize("age", ["0", "2"], ids=["older", "younger"])
@pytest.mark.parametrize("awake", [False, True])
def test_a_later_claim_neither_takes_nor_closes_a_served_port(age, awake):
    claims = PortClaims(settle=15)
    claims.claim(A, {20000: claim(A, "1")})
    claims.publish(A, frozenset({20000}), now=0)
    assert owner(claims, 20000) == A
    if awake:
        claims.publish(A, frozenset(), now=1)
    assert claims.new_rivals(20000) == set()
    # Another tenant writes the port's number into the status and a slice of its own object, and withdraws both.
    claims.claim(B, {20000: claim(B, age)})
    assert owner(claims, 20000, now=2) == A
    claims.publish(B, frozenset({20000}), now=100)
    assert owner(claims, 20000, now=100) == A
    assert claims.new_rivals(20000) == {B}
    claims.claim(B, {})
    assert claims.new_rivals(20000) == set()
    claims.publish(B, frozenset(), now=101)
    assert owner(claims, 20000, now=101) == owner(claims, 20000, now=200) == A


@pytest.mark.parametrize("age", ["0", "2"], ids=["older", "younger"])
def test_a_slice_alone_takes_no_port_from_its_owner(age):
    claims = PortClaims(settle=15)
    claims.claim(A, {20000: claim(A, "1")})
    claims.publish(A, frozenset({20000}), now=0)
    # Another tenant writes a slice with the port's number, with and without an ElastiService.
    claims.publish(B, frozenset({20000}), now=1)
    assert owner(claims, 20000, now=1) == A
    claims.claim(B, {20000: claim(B, age, reported=False)})
    assert owner(claims, 20000, now=2) == A
    claims.publish(B, frozenset(), now=3)
    claims.claim(B, {})
    assert claims.decide(20000, now=3) == (claim(A), None)


def test_a_port_that_only_a_slice_names_is_open_where_no_other_claims_it():
    claims = PortClaims(settle=15)
    claims.claim(A, {20000: claim(A, reported=False)})
    claims.publish(A, frozenset({20000}), now=0)
    assert owner(claims, 20000) == A


def test_a_port_that_status_named_stays_claimed_while_the_slice_has_it():
    claims = PortClaims(settle=15)
    claims.claim(A, {20000: claim(A)})
    claims.publish(A, frozenset({20000}), now=0)
    claims.claim(A, {20000: claim(A, reported=False), 20001: claim(A)})
    claims.claim(B, {20000: claim(B, "0")})
    assert owner(claims, 20000, now=1) is None


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["claim", "publish"]),
        st.sampled_from([A, B]),
        st.frozensets(st.integers(1, 3)),
        st.floats(0, 20),
    ),
    max_size=30,
)


@given(STEPS)
def test_no_port_is_ever_given_away_while_anothers_traffic_may_come(steps):
    claims, now = PortClaims(settle=15), 0.0
    pointed: dict[tuple[ServiceKey, int], float] = {}
    published: dict[ServiceKey, frozenset[int]] = {}
    claimed: dict[ServiceKey, frozenset[int]] = {}
    kept: set[tuple[ServiceKey, int]] = set()
    owners: dict[int, ServiceKey | None] = {}
    for what, key, ports, passed in steps:
        now += passed
        for owner_key, shown in published.items():
            pointed |= {(owner_key, port): now for port in shown}
        if what == "claim":
            claims.claim(key, {port: claim(key, "1" if key == A else "2") for port in ports})
            claimed[key] = ports
            kept |= {(key, port) for port in ports}
        else:
            claims.publish(key, ports, now=now)
            published[key] = ports
            pointed |= {(key, port): now for port in ports}
        kept = {
            (who, port)
            for who, port in kept
            if port in claimed[who] or now - pointed.get((who, port), -15.0) < 15
        }
        for port in (1, 2, 3):
            found = owner(claims, port, now)
            other = B if found == A else A
            is_given = found is not None and found != owners.get(port)
            if is_given and (other, port) in pointed and (other, port) in kept:
                assert now - pointed[other, port] >= 15
            owners[port] = found


def test_many_services_that_claim_one_port_cost_each_other_little():
    def seconds(count: int) -> float:
        claims = PortClaims(settle=15)
        claims.claim(A, {20000: claim(A)})
        claims.publish(A, frozenset({20000}), now=0)
        assert owner(claims, 20000) == A
        rivals = [ServiceKey("y", f"r{number}") for number in range(count)]
        began = time.process_time()
        for now, key in enumerate(rivals):
            claims.claim(key, {20000: claim(key, "0")})
            claims.publish(key, frozenset({20000}), now=now)
            assert owner(claims, 20000, now) == A
            assert claims.new_rivals(20000) == {key}
        return time.process_time() - began

    few = min(seconds(250) for _ in range(3))
    assert min(seconds(2000) for _ in range(3)) < 8 * few * 4


def test_a_service_with_many_ports_leaves_them_quickly():
    def seconds(count: int) -> float:
        claims = PortClaims(settle=15)
        claims.claim(A, {port: claim(A) for port in range(count)})
        began = time.process_time()
        claims.claim(A, {})
        return time.process_time() - began

    few = min(seconds(1000) for _ in range(3))
    assert min(seconds(8000) for _ in range(3)) < 8 * few * 4
