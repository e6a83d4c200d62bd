"""Descriptors are shared so that nobody's reserve can be taken."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from elasti.resolver.proxy.shares import Shares


def test_one_holder_may_take_all_but_the_reserve_of_others():
    shares = Shares(capacity=100, reserve=10)
    greedy, modest = shares.share(), shares.share()
    taken = 0
    while greedy.take():
        taken += 1
    assert taken == 90
    assert [modest.take() for _ in range(11)] == [True] * 10 + [False]


def test_the_reserve_shrinks_with_the_number_of_holders():
    shares = Shares(capacity=10, reserve=4)
    holders = [shares.share() for _ in range(5)]
    assert shares.reserve == 2
    assert all(holder.take() and holder.take() for holder in holders)
    assert not any(holder.take() for holder in holders)


def test_a_holder_that_leaves_gives_its_reserve_back_when_it_has_nothing():
    shares = Shares(capacity=10, reserve=5)
    one, two = shares.share(), shares.share()
    assert two.take()
    two.close()
    assert sum(one.take() for _ in range(20)) == 5
    two.give()
    assert sum(one.take() for _ in range(20)) == 5


@given(
    st.integers(1, 30),
    st.integers(0, 10),
    st.lists(st.tuples(st.integers(0, 4), st.booleans()), max_size=200),
)
def test_no_more_is_taken_than_there_is_and_every_reserve_is_honoured(capacity, reserve, steps):
    shares = Shares(capacity=capacity, reserve=reserve)
    holders = [shares.share() for _ in range(5)]
    for which, takes in steps:
        holder = holders[which]
        if takes:
            could = holder.used < shares.reserve
            assert holder.take() or not could
        elif holder.used:
            holder.give()
        assert sum(one.used for one in holders) <= capacity
        beyond = sum(max(one.used - shares.reserve, 0) for one in holders)
        assert shares.contended == beyond
