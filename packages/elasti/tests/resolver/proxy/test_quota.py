"""Descriptors are shared so that no Service's reserve can be taken."""

from __future__ import annotations

import pytest
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


class Holder:
    """A holder whose youngest connections can be shed; their descriptors come back at once, or later."""

    def __init__(self, quota: FairQuota, *, at_once: bool = True, size: int = 1) -> None:
        self.share = quota.share(self._shed)
        self._at_once, self._size = at_once, size
        self.ending = 0

    def _shed(self) -> bool:
        if self.share.used - self.ending < self._size:
            return False
        if self._at_once:
            self.share.give(self._size)
        else:
            self.ending += self._size
        return True

    def end(self) -> None:
        self.share.give(self.ending)
        self.ending = 0


def test_a_holder_without_anything_has_its_reserve_beside_those_that_took_all_else():
    shares = FairQuota(capacity=1000, reserve=10, aside=20)
    idle = [shares.share() for _ in range(20)]
    busy = [shares.share() for _ in range(10)]
    assert sum(map(taken, busy)) == 1000 - 20 - 20 * 10
    assert [taken(one) for one in idle] == [10] * 20


@pytest.mark.parametrize("at_once", [True, False])
def test_the_largest_holder_sheds_for_one_that_has_less_than_half_as_much(at_once):
    shares = FairQuota(capacity=100, reserve=10, aside=5)
    greedy, late = Holder(shares, at_once=at_once), Holder(shares)
    assert taken(greedy.share) == 85
    for _ in range(20):
        taken(late.share, 3)
        greedy.end()
    assert 30 <= late.share.used <= 33
    assert greedy.share.used == 95 - late.share.used
    assert taken(greedy.share) == 0, "neither does the larger one take from the smaller one"


def test_at_most_what_is_kept_aside_is_shed_at_a_time():
    shares = FairQuota(capacity=100, reserve=10, aside=5)
    greedy, late = Holder(shares, at_once=False), Holder(shares)
    assert taken(greedy.share) == 85
    assert taken(late.share) == 10 + 5
    assert greedy.ending == 5
    assert shares.used == shares.capacity


def test_a_holder_whose_connections_pods_serve_sheds_none():
    shares = FairQuota(capacity=100, reserve=10, aside=5)
    greedy, late = shares.share(), shares.share()
    assert taken(greedy) == 85
    assert taken(late) == 10


class Idle:
    """A holder whose connections end when others need them."""

    def __init__(self, shares: FairQuota) -> None:
        self.share = shares.share(self.shed)

    def shed(self) -> bool:
        if not self.share.used:
            return False
        self.share.give()
        return True


def test_a_holder_that_comes_late_gets_its_reserve_from_the_largest():
    shares = FairQuota(capacity=120, reserve=4, aside=4)
    assert taken(Idle(shares).share) == 116
    late = [shares.share() for _ in range(10)]
    assert [taken(one, 4) for one in late] == [4] * 10


def test_the_next_largest_sheds_if_the_largest_cannot():
    shares = FairQuota(capacity=40, reserve=2, aside=2)
    served, idle, small = shares.share(), Idle(shares).share, shares.share()
    assert taken(idle, 12) == 12
    assert taken(served) == 24
    assert taken(small, 4) == 4


def test_as_much_is_shed_as_one_needs():
    shares = FairQuota(capacity=1000, reserve=10, aside=50)
    greedy, late = Holder(shares, size=4), Holder(shares)
    assert taken(greedy.share) == 940
    before = greedy.share.used
    assert late.share.take(22)
    assert before - greedy.share.used == 12


def test_the_largest_holder_is_found_after_another_one_was():
    shares = FairQuota(capacity=100, reserve=10, aside=5)
    first, second, late = Holder(shares), Holder(shares), Holder(shares)
    assert taken(first.share, 50) == 50
    assert taken(second.share) == 75 - 50 + 10
    first.share.give(45)
    assert taken(second.share) == 40
    assert taken(late.share, 15) == 15
    assert (first.share.used, second.share.used) == (5, 70)


def test_reserves_are_at_most_half_of_all_and_grow_again():
    shares = FairQuota(capacity=20, reserve=4)
    holders = [shares.share() for _ in range(5)]
    assert shares.reserve == 2
    assert all(holder.take() and holder.take() for holder in holders)
    assert taken(holders[0]) == 10
    assert not any(holder.take() for holder in holders)
    for holder in holders[1:]:
        holder.give()
        holder.give()
        holder.close()
    assert shares.reserve == 4
    assert taken(holders[0]) == 8


def test_every_holder_has_one_while_there_are_enough():
    shares = FairQuota(capacity=22, reserve=4, aside=2)
    holders = [shares.share() for _ in range(20)]
    assert shares.reserve == 1
    assert [taken(holder) for holder in holders] == [1] * 20


def test_more_holders_than_there_is_compete_for_all_of_it():
    shares = FairQuota(capacity=3, reserve=4)
    holders = [shares.share() for _ in range(5)]
    assert shares.reserve == 0
    assert [holder.take() for holder in holders] == [True] * 3 + [False] * 2


def test_a_whole_that_shrinks_is_given_out_again_when_enough_came_back():
    shares = FairQuota(capacity=20, reserve=2)
    one, two = shares.share(), shares.share()
    assert taken(one) == 18
    shares.resize(12)
    assert (taken(one), taken(two)) == (0, 0)
    for _ in range(8):
        one.give()
    assert (taken(one), taken(two)) == (0, 2)
    shares.resize(20)
    assert (taken(one), taken(two)) == (8, 0)


def test_a_holder_that_leaves_gives_its_reserve_back_when_it_has_nothing():
    shares = FairQuota(capacity=20, reserve=5)
    one, two = shares.share(), shares.share()
    assert two.take()
    two.close()
    assert taken(one) == 15
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
def test_the_total_is_never_exceeded_and_every_count_is_right(capacity, reserve, aside, steps):
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
