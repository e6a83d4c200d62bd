"""Status, conditions and events."""

from __future__ import annotations

import msgspec
import pytest
from tests.operator.states import service_state
from tests.operator.values import NOW, WEB, elastiservice, facts_of

from elasti.api.conditions import Obstacle, Reason
from elasti.api.conditions import TransitionReason as Why
from elasti.api.states import State
from elasti.api.types import (
    DozeStatus,
    ElastiService,
    ElastiServiceStatus,
    ScaleTrigger,
)
from elasti.operator.idleness.decide import Evidence
from elasti.operator.model.facts import Decision, Verdict
from elasti.operator.model.findings import refusal, service_findings
from elasti.operator.report.events import is_surprise
from elasti.operator.report.status import condition, merged, status_of, status_patch
from elasti.operator.report.warnings import findings_of
from elasti.operator.watch.targets import missing_rules_text
from elasti.triggers.reader import TriggerReading
from kubeloop.objects.core import (
    ServicePort,
)
from kubeloop.objects.gvk import GroupVersionResource


def test_status_is_complete_and_written_only_on_change():
    known = service_state(State.WAKING)
    status = status_of(facts_of(), known, (), NOW)
    assert (status.mode, status.state, status.observed_generation) == ("proxy", "Waking", 3)
    assert [(p.port, p.resolver_port) for p in status.resolver_ports] == [
        (80, 20001),
        (5432, 20002),
    ]
    assert {c.type for c in status.conditions} == {
        "Ready",
        "TargetFound",
        "ServiceFound",
        "ResolverAvailable",
        "TriggersHealthy",
        "ScaleContested",
        "TrafficPath",
        "MaySleep",
    }
    assert status_patch(status, status, NOW) is None
    patch = status_patch(ElastiServiceStatus(), status, NOW)
    assert patch is not None
    assert "lastScaledUpTime" not in patch
    assert patch["lastReconciledTime"] == "2030-01-01T00:00:00Z"


def test_a_doze_is_in_a_report_only_if_it_changes():
    """A cache may be older than the originals of a former leader: to clear what it does not show would erase them."""
    doze = DozeStatus("Dozing", "2030-01-01T00:00:00Z")
    without, dozing = ElastiServiceStatus(), ElastiServiceStatus(doze=doze)
    for status in (without, dozing):
        patch = status_patch(status, msgspec.structs.replace(status, phase="Awake"), NOW)
        assert patch is not None
        assert "doze" not in patch
    ended, begun = status_patch(dozing, without, NOW), status_patch(without, dozing, NOW)
    assert ended is not None
    assert begun is not None
    assert ended["doze"] is None
    assert begun["doze"]["state"] == "Dozing"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"target": None, "target_problem": "gone"}, "TargetMissing"),
        ({"service": None}, "ServiceMissing"),
        ({}, "Valid"),
    ],
)
def test_ready_says_what_is_wrong(changes, reason):
    status = status_of(facts_of(**changes), service_state(State.SERVE), (), NOW)
    (ready,) = [c for c in status.conditions if c.type == "Ready"]
    assert ready.reason == reason


def test_failing_triggers_are_named():
    es = elastiservice(given_triggers=(ScaleTrigger("prometheus"),))
    broken = Evidence(1.0, TriggerReading(error="no answer"), 0.0)
    status = status_of(facts_of(es=es), service_state(), (broken,), NOW)
    (found,) = [c for c in status.conditions if c.type == "TriggersHealthy"]
    assert (found.status, found.reason) == ("False", Reason.FAILING)
    assert "triggers[0]" in found.message
    assert "no answer" in found.message


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ((), "NoTriggers"),
        (None, "NoDefaultTriggers"),
    ],
)
def test_triggers_left_out_are_not_an_empty_list(given, reason):
    es = elastiservice(given_triggers=given)
    status = status_of(facts_of(es=es), service_state(), (), NOW)
    (found,) = [c for c in status.conditions if c.type == "TriggersHealthy"]
    assert found.reason == reason
    assert "{type: traffic}" in found.message


def _known_to_a_former_leader(**changes) -> ElastiService:
    """An ElastiService whose triggers were read by a leader that is gone."""
    es = elastiservice(given_triggers=(ScaleTrigger("prometheus"),))
    quiet = Evidence(1.0, TriggerReading(0.0), 0.0, 0.0)
    known = service_state(State.SERVE)
    in_use = Obstacle("InUse", "triggers[0] was seen at work")
    status = status_of(
        facts_of(es=es, decision=Decision(Verdict.STAY, "", in_use)), known, (quiet,), NOW
    )
    return msgspec.structs.replace(es, status=status, **changes)


def test_a_new_leader_keeps_the_reported_triggers_until_it_has_read_them():
    es = _known_to_a_former_leader()
    unread = Obstacle(Reason.TRIGGERS_UNREAD, "triggers[0] has not been read lately")
    seen = facts_of(es=es, decision=Decision(Verdict.STAY, "", unread))
    for evidence in ((), (Evidence(1.0),)):
        status = status_of(seen, service_state(State.SERVE), evidence, NOW)
        assert status == es.status


@pytest.mark.parametrize("state", [State.SERVE, State.ENGAGING])
def test_reports_of_a_former_leader_about_another_trigger_are_dropped(state):
    es = _known_to_a_former_leader()
    if state is State.SERVE:
        newer = msgspec.structs.replace(es.metadata, generation=4)
        es = msgspec.structs.replace(es, metadata=newer)
    status = status_of(facts_of(es=es), service_state(state), (), NOW)
    (found,) = [c for c in status.conditions if c.type == "TriggersHealthy"]
    assert found.reason == "NotReadYet"


@pytest.mark.parametrize("flapping", [True, False])
def test_a_client_that_wakes_it_again_and_again_is_warned_of(flapping):
    found = findings_of(
        facts_of(es=elastiservice()),
        problems=(),
        owner="",
        outdated=None,
        keep_awake="",
        page="",
        shared_with=(),
        flapping=flapping,
    )
    assert ("Flapping" in {finding.reason for finding in found}) is flapping


@pytest.mark.parametrize(("threshold", "warned"), [("0", True), (0, True), ("0.5", False)])
def test_a_threshold_of_zero_is_warned_of(threshold, warned):
    es = elastiservice(
        given_triggers=(ScaleTrigger("pods", {"metric": "m", "threshold": threshold}),)
    )
    found = findings_of(
        facts_of(es=es),
        problems=(),
        owner="",
        outdated=None,
        keep_awake="",
        page="",
        shared_with=(),
    )
    assert ("ThresholdZero" in {finding.reason for finding in found}) is warned
    assert not any(finding.refuses for finding in found)


@pytest.mark.parametrize(
    ("before", "after", "reason", "surprising"),
    [
        (State.SERVE, State.ENGAGING, Why.IDLE, False),
        (State.ENGAGING, State.PARKING, Why.UNUSED, False),
        (State.PARKING, State.PROXY, Why.PARKED, False),
        (State.PROXY, State.WAKING, Why.WANTED, False),
        (State.WAKING, State.RELEASING, Why.ENDPOINT_READY, False),
        (State.RELEASING, State.SERVE, Why.RELEASED, False),
        (State.PROXY, State.WAKING, Why.SCALED_UP, True),
        (State.SERVE, State.PROXY, Why.SCALED_TO_ZERO, True),
        (State.SERVE, State.WAKING, Why.NO_ENDPOINT, True),
        (State.ENGAGING, State.RELEASING, Why.TRAFFIC_ARRIVED, True),
    ],
)
def test_only_what_no_cycle_has_is_an_event_of_its_own(before, after, reason, surprising):
    assert is_surprise(before, after, reason) is surprising


def test_a_conditions_time_moves_with_its_status_only():
    old = condition("Ready", holds=True, reason="A")
    (first,) = merged((), [old], now="t1")
    (same,) = merged([first], [condition("Ready", holds=True, reason="B")], now="t2")
    (other,) = merged([same], [condition("Ready", holds=False, reason="C")], now="t3")
    assert [c.last_transition_time for c in (first, same, other)] == ["t1", "t1", "t3"]


def test_policies_that_drop_or_hide_traffic_are_reported():
    local = msgspec.structs.replace(
        WEB, spec=msgspec.structs.replace(WEB.spec, external_traffic_policy="Local")
    )
    found = refusal(service_findings(local))
    assert found is not None
    assert found.reason == "ExternalTrafficPolicyLocal"
    affine = msgspec.structs.replace(
        WEB, spec=msgspec.structs.replace(WEB.spec, session_affinity="ClientIP")
    )
    assert refusal(service_findings(affine)) is None
    assert "SessionAffinity" in {finding.reason for finding in service_findings(affine)}


def test_udp_beside_tcp_is_a_warning_and_alone_a_refusal():
    assert refusal(service_findings(WEB)) is None
    assert "53/UDP" in service_findings(WEB)[0].message
    only = msgspec.structs.replace(
        WEB, spec=msgspec.structs.replace(WEB.spec, ports=(ServicePort(53, "dns", "UDP"),))
    )
    found = refusal(service_findings(only))
    assert found is not None
    assert found.reason == "NoTCPPort"


def test_a_forbidden_kind_gets_the_rule_to_add():
    words = missing_rules_text(GroupVersionResource("example.com", "v1", "farms"))
    assert (
        '{apiGroups: ["example.com"], resources: [farms/scale], verbs: [get, update, patch]}'
        in words
    )
    assert "aggregate-to-operator" in words
