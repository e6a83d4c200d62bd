from __future__ import annotations

from tests.e2e.account import MOST_LAG, Window, settle
from tests.e2e.prober.plan import Fault, Record, Summary

SUMMARY = Summary(began=0, ended=10, cpu=1, sent=1)


def record(name: str = "r-1", **more: object) -> Record:
    fields: dict[str, object] = {
        "method": "GET",
        "target": 0,
        "reused": False,
        "due": 1.0,
        "sent": 1.0,
    }
    fields |= {"answered": 2.0, "status": 200, "pod": "web-1"}
    return Record(id=name, **{**fields, **more})  # type: ignore[arg-type]  # a record to be


def test_an_answered_request_that_was_executed_once_is_not_lost():
    account = settle([record()], [SUMMARY], {"r-1": ["web-1"]})
    assert account.lost == {}
    assert account.prober_cpu == 0.1


def test_a_request_that_two_pods_executed_is_lost():
    account = settle([record()], [SUMMARY], {"r-1": ["web-1", "web-2"]})
    assert account.lost == {"executed twice": 1}
    assert "web-1, web-2" in account.examples[0]


def test_an_answer_of_a_pod_that_did_not_execute_the_request_is_lost():
    assert settle([record()], [SUMMARY], {}).lost == {"wrong body": 1}
    assert settle([record()], [SUMMARY], {"r-1": ["web-2"]}).lost == {"wrong body": 1}


def test_what_fails_while_a_dead_pod_is_in_rotation_is_counted_apart():
    window = Window(1.5, 2.5, "it was killed", most=1)
    refused = record(fault=Fault.REFUSED, pod="")
    assert settle([refused], [SUMMARY], {}, [window]).apart == 1
    assert settle([refused], [SUMMARY], {}, [window]).lost == {}


def test_what_fails_at_another_time_or_in_another_way_is_not_excused():
    windows = [Window(1.5, 2.5, "it was killed", most=9)]
    late = record(fault=Fault.REFUSED, answered=2.6)
    unanswered = record(fault=Fault.TIMEOUT)
    overflow = record(fault=Fault.STATUS, status=503)
    for lost in (late, unanswered, overflow):
        assert settle([lost], [SUMMARY], {}, windows).lost_in_all == 1


def test_more_failures_than_a_window_may_explain_are_lost():
    windows = [Window(1.5, 2.5, "it was killed", most=2)]
    refused = [record(f"r-{n}", fault=Fault.REFUSED, pod="") for n in range(5)]
    account = settle(refused, [SUMMARY], {}, windows)
    assert (account.apart, account.lost_in_all) == (2, 3)


def test_a_lost_node_explains_silence_of_what_was_sent_while_it_was_in_rotation():
    windows = [Window(0.5, 1.5, "its node was lost", most=9, silent=True)]
    unanswered = record(fault=Fault.TIMEOUT, sent=1.0, answered=11.0)
    late = record("r-2", fault=Fault.TIMEOUT, sent=1.6, answered=11.6)
    account = settle([unanswered, late], [SUMMARY], {}, windows)
    assert (account.apart, account.lost) == (1, {"timeout": 1})


def test_holds_and_lateness_are_summed_up():
    records = [record(f"r-{n}", held=n / 100, sent=1 + n / 1000) for n in range(100)]
    account = settle(records, [SUMMARY], {r.id: ["web-1"] for r in records})
    assert (account.held, account.hold_p50, account.hold_p99) == (100, 0.5, 0.99)
    assert account.is_valid


def test_a_prober_that_was_late_proves_nothing():
    late = record(sent=1.0 + MOST_LAG + 0.1, answered=9.0)
    assert not settle([late], [SUMMARY], {"r-1": ["web-1"]}).is_valid


def test_a_prober_that_ran_out_of_descriptors_proves_nothing():
    unsent = record(fault=Fault.OWN, pod="")
    assert not settle([unsent], [SUMMARY], {}).is_valid
