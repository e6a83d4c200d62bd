"""What several ElastiServices of one target decide together."""

from __future__ import annotations

import msgspec
from tests.operator.values import elastiservice

from elasti.api.conditions import Reason
from elasti.api.types import (
    ElastiService,
    ScaleTrigger,
)
from elasti.operator.idleness.decisions import Decisions, combined_decision
from elasti.operator.model.facts import Decision, Verdict
from elasti.operator.model.state import StateStore
from elasti.operator.pacing import RateSpacer
from elasti.operator.watch.directory import Directory
from kubeloop.aio.clock import SystemClock
from kubeloop.controller.reconcile import Request


def test_sleeping_needs_all_and_waking_any():
    sleep, look, stay, wake = (Decision(verdict, verdict.value) for verdict in Verdict)
    assert combined_decision([sleep, look]) is look
    assert combined_decision([look, stay]) is stay
    assert combined_decision([sleep, sleep]).verdict is Verdict.SLEEP
    assert combined_decision([sleep, stay]).verdict is Verdict.STAY
    assert combined_decision([sleep, stay, wake]).verdict is Verdict.WAKE
    assert combined_decision([]).verdict is Verdict.STAY


def test_a_cooldown_of_zero_is_kubeelastis_default():
    assert elastiservice(cooldown_period=0).spec.cooldown == 900.0
    assert elastiservice(cooldown_period=7).spec.cooldown == 7.0


def test_triggers_not_read_yet_are_not_taken_for_none():
    directory, states = Directory(), StateStore()
    es = elastiservice(given_triggers=(ScaleTrigger("pods", {"metric": "m", "threshold": "1"}),))
    directory.put(msgspec.convert(msgspec.to_builtins(es), ElastiService))
    request = Request("shop", "web")
    states.of(request, "", "web")
    decisions = Decisions(
        directory=directory,
        states=states,
        evidence=lambda _request: (),
        clock=SystemClock(),
        polling_interval=30.0,
    )
    decided = decisions.together(request)
    assert decided.verdict is Verdict.STAY
    assert decided.obstacle is not None
    assert decided.obstacle.reason == Reason.TRIGGERS_UNREAD


def test_turns_are_handed_out_at_a_steady_rate():
    pacer = RateSpacer(rate=10.0)
    assert [round(pacer.reserve(5.0), 3) for _ in range(3)] == [5.0, 5.1, 5.2]
    assert pacer.reserve(9.0) == 9.0
