"""Requests: which of several requests is the one that a wake-up is named after."""

from __future__ import annotations

from elasti.api.conditions import WakeCause
from elasti.operator.model.requests import RequestState, WakeOrigin


def named(requests: RequestState) -> tuple[WakeCause | None, str, str]:
    return requests.cause, requests.client, requests.wake_id


def test_the_first_request_names_a_wake_up():
    requests = RequestState()
    requests.want_wake(1.0, WakeOrigin.request("10.0.0.1", "AAAA"))
    requests.want_wake(2.0, WakeOrigin.request("10.0.0.2", "BBBB"))
    assert named(requests) == (WakeCause.REQUEST, "10.0.0.1", "AAAA")
    assert requests.last_traffic == 2.0


def test_a_request_during_a_wake_up_does_not_rename_it():
    requests = RequestState()
    requests.want_wake(1.0, WakeOrigin.request("10.0.0.1", "AAAA"))
    requests.note_woken(2.0, WakeOrigin.request("10.0.0.1", "AAAA"))
    requests.want_wake(3.0, WakeOrigin.request("10.0.0.2", "BBBB"))
    requests.note_awake()
    requests.want_wake(4.0, WakeOrigin.request("10.0.0.3", "CCCC"))
    assert named(requests) == (WakeCause.REQUEST, "10.0.0.1", "AAAA")


def test_a_request_does_not_rename_a_wake_up_of_another_cause():
    requests = RequestState()
    requests.note_woken(1.0, WakeOrigin(WakeCause.SCHEDULE, "", "office hours"))
    requests.want_wake(2.0, WakeOrigin.request("10.0.0.1", "AAAA"))
    assert named(requests) == (WakeCause.SCHEDULE, "", "")


def test_the_first_known_client_names_a_wake_up_that_was_asked_for_without_one():
    requests = RequestState()
    requests.want_wake(1.0, WakeOrigin.request(), asked=False)
    requests.want_wake(2.0, WakeOrigin.request("10.0.0.1", "AAAA"))
    assert named(requests) == (WakeCause.REQUEST, "10.0.0.1", "AAAA")


def test_the_next_wake_up_has_its_own_name():
    requests = RequestState()
    requests.want_wake(1.0, WakeOrigin.request("10.0.0.1", "AAAA"))
    requests.note_woken(2.0, WakeOrigin.request("10.0.0.1", "AAAA"))
    requests.note_awake()
    requests.note_released()
    requests.want_wake(900.0, WakeOrigin.request("10.0.0.2", "BBBB"))
    assert named(requests) == (WakeCause.REQUEST, "10.0.0.2", "BBBB")
