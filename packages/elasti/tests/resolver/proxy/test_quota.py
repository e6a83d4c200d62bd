"""Descriptors are shared so that no Service's reserve can be taken."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from elasti.resolver.proxy.quota import FairQuota, QuotaShare


def taken(share: QuotaShare, most: int = 1000) -> int:
    """Take what can be had."""
    return sum(share.take() for _ in range(most))


def test_one_holder_may_take_all_but_the_reserve_of_others():
    shares = FairQuota(capacity=100, reserve=10)
    greedy, modest = shares.share(), shares.share()
    assert taken(greedy) == 90
    assert taken(modest) == 10


def test_a_late_holder_gets_what_was_kept_aside():
    shares = FairQuota(capacity=100, reserve=10, aside=20)
    greedy = shares.share()
    assert taken(greedy) == 90
    one, two = shares.share(), shares.share()
    assert taken(one) == 10
    assert taken(two) == 0, "all that was kept aside is gone"
    for _ in range(10):
        greedy.give()
    assert taken(two) == 10
    assert taken(greedy) == 0


def test_the_reserve_shrinks_with_the_number_of_holders_and_grows_again():
    shares = FairQuota(capacity=10, reserve=4)
    holders = [shares.share() for _ in range(5)]
    assert shares.reserve == 2
    assert all(holder.take() and holder.take() for holder in holders)
    assert not any(holder.take() for holder in holders)
    for holder in holders[1:]:
        holder.give()
        holder.give()
        holder.close()
    assert shares.reserve == 4
    assert taken(holders[0]) == 8


def test_more_holders_than_there_is_compete_for_all_of_it():
    shares = FairQuota(capacity=3, reserve=4)
    holders = [shares.share() for _ in range(5)]
    assert shares.reserve == 0
    assert [holder.take() for holder in holders] == [True] * 3 + [False] * 2


def test_a_whole_that_shrinks_is_given_out_again_when_enough_came_back():
    shares = FairQuota(capacity=10, reserve=2)
    one, two = shares.share(), shares.share()
    assert taken(one) == 8
    shares.resize(6)
    assert (taken(one), taken(two)) == (0, 0)
    for _ in range(4):
        one.give()
    assert (taken(one), taken(two)) == (0, 2)
    shares.resize(10)
    assert (taken(one), taken(two)) == (4, 0)


def test_a_holder_that_leaves_gives_its_reserve_back_when_it_has_nothing():
    shares = FairQuota(capacity=10, reserve=5)
    one, two = shares.share(), shares.share()
    assert two.take()
    two.close()
    assert taken(one) == 5
    two.give()
    assert taken(one) == 5


def test_holders_are_looked_at_only_when_their_number_has_doubled():
    looked = 0

    class Counted(set[QuotaShare]):
        def __iter__(self):
            nonlocal looked
            looked += len(self)
            return super().__iter__()

    shares = FairQuota(capacity=12_000, reserve=64)
    shares._holders = Counted()
    holders = [shares.share() for _ in range(10_000)]
    for _ in range(10_000):
        shares.share().close()
    for holder in holders:
        holder.close()
    assert looked < 60_000


steps = st.lists(
    st.tuples(st.sampled_from(["take", "give", "join", "leave"]), st.integers(0, 9)), max_size=200
)


@given(st.integers(1, 40), st.integers(0, 10), st.integers(0, 5), steps)
def test_no_more_is_taken_than_there_is_and_every_count_is_right(capacity, reserve, aside, steps):
    shares = FairQuota(capacity=capacity, reserve=reserve, aside=min(aside, capacity))
    holders = [shares.share()]
    for what, which in steps:
        holder = holders[which % len(holders)]
        if what == "take":
            could = holder.used < shares.reserve and shares.used < capacity
            assert holder.take() or not could
        elif what == "give" and holder.used:
            holder.give()
        elif what == "join" and len(holders) < 10:
            holders.append(shares.share())
        elif what == "leave" and len(holders) > 1 and not holder.used:
            holders.remove(holder)
            holder.close()
        assert shares.used == sum(one.used for one in holders) <= capacity
        assert shares.contended == sum(max(one.used - shares.reserve, 0) for one in holders)
        assert shares.reserve * len(holders) <= capacity


@given(st.integers(10, 60), st.integers(1, 10), steps)
def test_an_early_holder_never_loses_its_reserve(capacity, reserve, steps):
    shares = FairQuota(capacity=capacity, reserve=reserve)
    patient, *others = [shares.share() for _ in range(4)]
    for what, which in steps:
        other = others[which % 3]
        if what == "take":
            other.take()
        elif what == "give" and other.used:
            other.give()
    assert taken(patient, shares.reserve) == shares.reserve
