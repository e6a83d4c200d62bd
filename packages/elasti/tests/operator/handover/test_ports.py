"""The book of resolver ports."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from elasti.api.defaults import FIRST_RESOLVER_PORT, LAST_RESOLVER_PORT
from elasti.operator.handover.ports import QUARANTINE, PortBook, PortOwner, PortsExhausted

OLD = PortOwner("2030-01-01T00:00:00Z", "a")
YOUNG = PortOwner("2030-01-02T00:00:00Z", "b")


def test_ports_are_in_the_range_and_stay():
    book = PortBook()
    given = book.assign(OLD, "shop/web", [80, 443], 0.0)
    assert set(given) == {80, 443}
    assert all(FIRST_RESOLVER_PORT <= port <= LAST_RESOLVER_PORT for port in given.values())
    assert len(set(given.values())) == 2
    assert book.assign(OLD, "shop/web", [80, 443], 9.0) == given


def test_the_same_service_tends_to_the_same_port_after_a_restart():
    assert PortBook().assign(OLD, "shop/web", [80], 0.0) == PortBook().assign(
        OLD, "shop/web", [80], 0.0
    )


def test_what_was_published_or_reported_is_kept():
    book = PortBook()
    book.claim(OLD, {80: 20001})
    book.claim(OLD, {80: 20002, 443: 20003})
    assert book.assign(OLD, "shop/web", [80, 443], 0.0) == {80: 20001, 443: 20003}


@pytest.mark.parametrize(("holder", "rival"), [(OLD, YOUNG), (YOUNG, OLD)])
def test_a_held_port_is_not_claimed_by_another_of_whatever_age(holder, rival):
    book = PortBook()
    book.claim(holder, {80: 20001})
    book.claim(rival, {80: 20001})
    assert book.held_by(holder) == {80: 20001}
    assert book.assign(rival, "shop/api", [80], 0.0)[80] != 20001


@pytest.mark.parametrize("port", [8012, 19999, 30000])
def test_ports_outside_the_range_are_not_claimed(port):
    book = PortBook()
    book.claim(OLD, {80: port})
    assert book.held_by(OLD) == {}


def test_ports_outside_the_range_are_to_be_written_down():
    book = PortBook(40000, 40999)
    book.claim(OLD, {80: 20001})
    assert book.unwritten == {20001}


def test_the_widest_range_has_room_for_40_000_and_a_namespace_gets_half():
    book = PortBook(9000, 48999)
    for number in range(20_000):
        book.assign(PortOwner("2030-01-01T00:00:00Z", str(number), "bob"), f"bob/{number}", [80], 0)
    with pytest.raises(PortsExhausted, match="share of 20000"):
        book.assign(PortOwner("2030-01-01T00:00:00Z", "one more", "bob"), "bob/more", [80], 0)
    for number in range(20_000):
        owner = PortOwner("2030-01-01T00:00:00Z", f"c{number}", f"carol-{number % 9}")
        book.assign(owner, f"carol/{number}", [80], 0)
    with pytest.raises(PortsExhausted, match="of 40000"):
        book.assign(PortOwner("2030-01-01T00:00:00Z", "z", "z"), "z/more", [80], 0)


BOB = PortOwner("2030-01-02T00:00:00Z", "b", "bob")
CAROL = PortOwner("2030-01-03T00:00:00Z", "c", "carol")


def test_changing_one_services_ports_takes_none_from_other_namespaces():
    book = PortBook()

    def edit_often() -> None:
        for edit in range(100):
            first = 1 + edit % 2 * 1000
            book.assign(BOB, "bob/web", range(first, first + 100), edit * 0.37)

    with pytest.raises(PortsExhausted, match=r"namespace bob .*\b500 resolver ports"):
        edit_often()
    assert len(book.assign(CAROL, "carol/web", range(1, 101), 37.0)) == 100
    assert len(book.assign(BOB, "bob/web", range(1, 101), 37.0 + QUARANTINE)) == 100


def test_a_namespace_has_at_most_half_of_the_ports():
    book = PortBook(20000, 20999)
    book.assign(BOB, "bob/web", range(1, 501), 0.0)
    with pytest.raises(PortsExhausted, match=r"namespace bob .*\b500 resolver ports"):
        book.assign(PortOwner("2030-01-04T00:00:00Z", "d", "bob"), "bob/more", [80], 0.0)
    assert book.assign(CAROL, "carol/web", [80], 0.0)


def test_a_freed_port_rests_and_the_longest_rested_comes_first():
    book = PortBook(20000, 20001)
    first = book.assign(OLD, "a", [80], 0.0)[80]
    book.release(OLD, 0.0)
    second = book.assign(OLD, "b", [80], 1.0)[80]
    assert second != first
    book.release(OLD, 1.0)
    with pytest.raises(PortsExhausted, match=r"\b2 quarantined"):
        book.assign(YOUNG, "c", [80], QUARANTINE - 0.1)
    assert book.assign(YOUNG, "c", [80], QUARANTINE + 2.0)[80] == first


def test_a_port_that_rests_cannot_be_claimed_back():
    book = PortBook()
    port = book.assign(OLD, "a", [80], 0.0)[80]
    book.release(OLD, 0.0)
    book.claim(YOUNG, {80: port})
    assert book.held_by(YOUNG) == {}


def test_a_port_that_the_service_lost_is_freed():
    book = PortBook()
    both = book.assign(OLD, "a", [80, 81], 0.0)
    assert book.assign(OLD, "a", [80], 0.0) == {80: both[80]}
    book.claim(YOUNG, {81: both[81]})
    assert book.held_by(YOUNG) == {}


class Book(RuleBasedStateMachine):
    """Whatever happens: one owner a port, and no port changes hands without a rest."""

    @initialize()
    def begin(self) -> None:
        self.book = PortBook(20000, 20011)
        self.now = 0.0
        self.held: dict[int, PortOwner] = {}
        self.freed: dict[int, float] = {}

    def _owner(self, number: int) -> PortOwner:
        return PortOwner(f"2030-01-0{number}T00:00:00Z", f"u{number}")

    @rule(number=st.integers(1, 6), ports=st.lists(st.integers(80, 83), unique=True, max_size=3))
    def assign(self, number: int, ports: list[int]) -> None:
        owner = self._owner(number)
        try:
            given = self.book.assign(owner, f"s{number}", ports, self.now)
        except PortsExhausted:
            self._sync()
            return
        assert set(given) == set(ports)
        for port in given.values():
            if port in self.freed:
                assert self.now - self.freed[port] >= QUARANTINE
        self._sync()

    @rule(number=st.integers(1, 6))
    def release(self, number: int) -> None:
        self.book.release(self._owner(number), self.now)
        self._sync()

    @rule(number=st.integers(1, 6), port=st.integers(19998, 20013))
    def claim(self, number: int, port: int) -> None:
        self.book.claim(self._owner(number), {80: port})
        self._sync()

    @rule(seconds=st.sampled_from([1.0, 600.0, 3600.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    def _sync(self) -> None:
        present = {
            port: self._owner(number)
            for number in range(1, 7)
            for port in self.book.held_by(self._owner(number)).values()
        }
        for port in self.held.keys() - present.keys():
            self.freed[port] = self.now
        for port in present:
            self.freed.pop(port, None)
        self.held = present

    @invariant()
    def no_port_has_two_owners(self) -> None:
        ports = [
            port
            for number in range(1, 7)
            for port in self.book.held_by(self._owner(number)).values()
        ]
        assert len(ports) == len(set(ports))
        assert all(20000 <= port <= 20011 for port in ports)


TestBook = Book.TestCase
TestBook.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
