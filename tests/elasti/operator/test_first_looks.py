from __future__ import annotations

import structlog.testing

from elasti.operator.first_looks import FirstLooks
from kubeloop.controller.reconcile import Request

A, B = Request("shop", "a"), Request("shop", "b")


def test_the_last_first_look_is_told_once_with_how_many_failed() -> None:
    with structlog.testing.capture_logs() as told:
        looks = FirstLooks([A, B])
        looks.looked(A, failed=True)
        looks.looked(A, failed=False)
        assert told == []
        looks.looked(B, failed=False)
        looks.looked(B, failed=True)

    assert [(line["elastiservices"], line["failed"]) for line in told] == [(2, 1)]


def test_what_came_later_is_not_waited_for() -> None:
    with structlog.testing.capture_logs() as told:
        looks = FirstLooks([A])
        looks.looked(B, failed=False)
        assert told == []
        looks.looked(A, failed=False)

    assert len(told) == 1


def test_with_nothing_there_it_is_told_at_once() -> None:
    with structlog.testing.capture_logs() as told:
        FirstLooks([])

    assert told[0]["elastiservices"] == 0
