"""Many looks, a few at a time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from elasti.operator.pacing import BoundedRequeue
from kubeloop.controller.reconcile import Request

REQUESTS = st.builds(Request, st.just("shop"), st.sampled_from("abcdef"))


def test_only_a_few_are_under_way_and_all_come_in_order():
    asked: list[Request] = []
    trickle = BoundedRequeue(asked.append, most=2)
    everyone = [Request("shop", f"web-{number}") for number in range(10)]
    for request in everyone:
        trickle.add(request)
    assert asked == everyone[:2]
    assert repr(trickle) == "<BoundedRequeue 2 under way, 8 waiting>"
    for number, request in enumerate(everyone):
        trickle.reconciled(request)
        assert asked == everyone[: number + 3]
    assert repr(trickle) == "<BoundedRequeue 0 under way, 0 waiting>"


@given(st.lists(st.tuples(st.booleans(), REQUESTS)))
def test_whatever_was_added_is_asked_for_after_that(steps):
    asked: list[Request] = []
    trickle = BoundedRequeue(asked.append, most=2)
    due: set[Request] = set()

    def reconciled(request: Request) -> None:
        trickle.reconciled(request)

    for is_new, request in steps:
        before = len(asked)
        if is_new:
            trickle.add(request)
            due.add(request)
        else:
            reconciled(request)
        due -= set(asked[before:])
    for _ in range(20):
        for request in dict.fromkeys(asked):
            before = len(asked)
            reconciled(request)
            due -= set(asked[before:])
    assert due == set()
    assert repr(trickle) == "<BoundedRequeue 0 under way, 0 waiting>"
