from __future__ import annotations

from tests.log_lines import capture_logs

from elasti.operator.leader import StartupProgress
from kubeloop.controller.reconcile import Request

A, B = Request("shop", "a"), Request("shop", "b")


def test_the_last_first_reconcile_is_logged_once_with_failures() -> None:
    with capture_logs() as told:
        progress = StartupProgress([A, B])
        progress.reconciled(A, failed=True)
        progress.reconciled(A, failed=False)
        assert told == []
        progress.reconciled(B, failed=False)
        progress.reconciled(B, failed=True)

    assert [(line["elastiservices"], line["failed"]) for line in told] == [(2, 1)]


def test_what_came_later_is_not_waited_for() -> None:
    with capture_logs() as told:
        progress = StartupProgress([A])
        progress.reconciled(B, failed=False)
        assert told == []
        progress.reconciled(A, failed=False)

    assert len(told) == 1


def test_with_nothing_there_it_is_logged_at_once() -> None:
    with capture_logs() as told:
        StartupProgress([])

    assert told[0]["elastiservices"] == 0
