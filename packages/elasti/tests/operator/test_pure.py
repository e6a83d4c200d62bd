"""The operator's values: children, plans, overlays, conflicts, reports, settings, directory."""

from __future__ import annotations

import dataclasses
import datetime as dt

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.operator.states import service_state

from elasti.api.conditions import Obstacle, Reason
from elasti.api.crd import custom_resource_definition, missing_fields, schema_hash
from elasti.api.defaults import cooldown_of
from elasti.api.names import API_VERSION
from elasti.api.parsing import SettingsError
from elasti.api.types import (
    ElastiService,
    ElastiServiceSpec,
    ElastiServiceStatus,
    EnabledPeriod,
    ScaleTargetRef,
    ScaleTrigger,
)
from elasti.api.wire import ActivityReport
from elasti.operator.handover import plan as plans
from elasti.operator.handover.children import (
    private_differs,
    private_service,
    published_ports,
    resolver_slices,
    slice_differs,
)
from elasti.operator.handover.execute import combined_activity
from elasti.operator.handover.machine import HOLDS, Activity, State
from elasti.operator.handover.observe import Facts
from elasti.operator.handover.own_writes import WriteOverlay
from elasti.operator.handover.scale_conflicts import ScaleConflict, replicas_writer
from elasti.operator.handover.state import StateStore
from elasti.operator.idleness.decide import Decision, Evidence, Verdict
from elasti.operator.idleness.decisions import Decisions, combined_decision
from elasti.operator.pacing import RateSpacer
from elasti.operator.rbac import CLUSTER_RULES, LEASE_RULES, NAMESPACED_RULES
from elasti.operator.report.conditions import condition, merged, refusal, service_findings
from elasti.operator.report.events import is_surprise
from elasti.operator.report.status import status_of, status_patch
from elasti.operator.report.warnings import findings_of
from elasti.operator.settings import OnResolverLoss, OperatorSettings
from elasti.operator.watch.directory import Directory
from elasti.operator.watch.targets import UpdateObjInfo, missing_rules_text
from elasti.triggers.registry import TriggerReading
from kubeloop.aio.clock import SystemClock
from kubeloop.controller.reconcile import Request
from kubeloop.objects.core import (
    EndpointConditions,
    Service,
    ServiceEndpoint,
    ServicePort,
    ServiceSpec,
)
from kubeloop.objects.gvk import GroupVersionResource
from kubeloop.objects.meta import ObjectMeta
from kubeloop.objects.times import unix_seconds

NOW = dt.datetime(2030, 1, 1, tzinfo=dt.UTC)
WEB = Service(
    metadata=ObjectMeta(
        name="web",
        namespace="shop",
        uid="s1",
        annotations={"lb": "yes"},
        labels={"app": "web"},
    ),
    spec=ServiceSpec(
        type="LoadBalancer",
        cluster_ip="10.0.0.1",
        selector={"app": "web"},
        ports=(
            ServicePort(80, "http", app_protocol="http", target_port=8080),
            ServicePort(5432, "db"),
            ServicePort(53, "dns", "UDP"),
        ),
        ip_families=("IPv4", "IPv6"),
    ),
)
READY = EndpointConditions(ready=True)


def elastiservice(name="web", *, created="2030-01-01T00:00:00Z", uid="", **spec) -> ElastiService:
    ref = ScaleTargetRef("apps/v1", "Deployment", "web")
    body = ElastiServiceSpec(**{"scale_target_ref": ref, "service": "web", **spec})
    meta = ObjectMeta(
        name=name,
        namespace="shop",
        uid=uid or f"u-{name}",
        creation_timestamp=created,
        generation=3,
    )
    return ElastiService(body, meta)


def target(replicas: int) -> UpdateObjInfo:
    return UpdateObjInfo(spec_replicas=replicas, uid="t", version="1")


# Children


def test_both_families_are_published_with_all_tcp_ports():
    resolvers = [
        ServiceEndpoint(("10.1.0.2",), READY, "n1", "z1"),
        ServiceEndpoint(("10.1.0.1",), READY, "n2", "z2"),
        ServiceEndpoint(("fd00::1",), READY, "n1", "z1"),
    ]
    four, six = resolver_slices(WEB, resolvers, {80: 20001, 5432: 20002})
    assert (four.address_type, six.address_type) == ("IPv4", "IPv6")
    assert four.metadata.name != six.metadata.name
    assert [e.addresses[0] for e in four.endpoints or ()] == ["10.1.0.1", "10.1.0.2"]
    for piece in (four, six):
        assert {p.name: p.port for p in piece.ports or ()} == {"http": 20001, "db": 20002}
        assert [owner.uid for owner in piece.metadata.owner_references or ()] == ["s1"]
    assert published_ports([four, six], WEB) == {80: 20001, 5432: 20002}


def test_a_family_that_the_service_lacks_is_left_out():
    only_four = msgspec.structs.replace(
        WEB, spec=msgspec.structs.replace(WEB.spec, ip_families=("IPv4",))
    )
    slices = resolver_slices(only_four, [ServiceEndpoint(("fd00::1",), READY)], {80: 1, 5432: 2})
    assert slices == ()


def test_the_order_of_endpoints_and_ports_is_no_difference():
    resolvers = [ServiceEndpoint(("10.1.0.2",), READY), ServiceEndpoint(("10.1.0.1",), READY)]
    (piece,) = resolver_slices(WEB, resolvers, {80: 20001, 5432: 20002})
    turned = msgspec.structs.replace(
        piece,
        endpoints=tuple(reversed(piece.endpoints or ())),
        ports=tuple(reversed(piece.ports or ())),
    )
    assert not slice_differs(turned, piece)
    assert slice_differs(msgspec.structs.replace(piece, endpoints=()), piece)


def test_a_private_service_is_told_from_a_copy_of_the_public_one():
    wanted = private_service(WEB)
    assert not private_differs(wanted, wanted)
    assert private_differs(WEB, wanted)
    annotated = msgspec.structs.replace(
        wanted, metadata=msgspec.structs.replace(wanted.metadata, annotations={"a": "b"})
    )
    assert private_differs(annotated, wanted)


def test_private_services_are_written_only_where_they_differ():
    facts = Facts(es=elastiservice(), now=0.0, service=WEB)
    (create,) = plans.companions(facts)
    assert create == plans.PutPrivate(private_service(WEB), exists=False)
    assert plans.companions(dataclasses.replace(facts, private=private_service(WEB))) == ()
    (replace,) = plans.companions(dataclasses.replace(facts, private=WEB))
    assert isinstance(replace, plans.PutPrivate)
    assert replace.exists


# Plans


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("replicas", [0, 1, 3])
def test_a_plan_brings_about_what_its_state_holds(state: State, replicas: int):
    (piece,) = resolver_slices(WEB, [ServiceEndpoint(("10.1.0.1",), READY)], {80: 1, 5432: 2})
    es = elastiservice(min_target_replicas=2)
    facts = Facts(es=es, now=0.0, service=WEB, target=target(replicas), slices=(piece,))
    kinds = [type(write) for write in plans.plan(state, facts, service_state())]
    holds = HOLDS[state]
    assert (plans.PublishSlices in kinds) is holds.slice
    assert (plans.RemoveSlices in kinds) is not holds.slice
    assert (plans.Wake in kinds) is (state is State.WAKING and replicas < 2)
    assert (plans.ParkTarget in kinds) is (state is State.PARKING and replicas > 0)
    if plans.PublishSlices in kinds:
        assert kinds.index(plans.PublishSlices) == 0, "what takes traffic is there first"
    if plans.RemoveSlices in kinds:
        assert kinds[-1] is plans.RemoveSlices


# Overlays


def test_a_write_is_seen_before_the_cache_has_it():
    overlay: WriteOverlay[str] = WriteOverlay()
    overlay.wrote("x", "10", "ours")
    assert overlay.newest("x", None, "") == "ours"
    assert overlay.newest("x", "old", "9") == "ours"
    assert overlay.newest("x", "same", "10") == "same"
    overlay.caught_up("x", "10")
    assert overlay.newest("x", None, "") is None, "the cache has caught up"


def test_a_delete_is_seen_before_the_cache_has_it():
    overlay: WriteOverlay[str] = WriteOverlay()
    overlay.deleted("x", "10")
    assert overlay.newest("x", "old", "10") is None
    assert overlay.newest("x", "made anew", "12") == "made anew"


def test_what_another_removed_is_gone():
    overlay: WriteOverlay[str] = WriteOverlay()
    overlay.wrote("x", "10", "ours")
    overlay.gone("x", "9")
    assert overlay.newest("x", None, "") == "ours", "an older one went"
    overlay.gone("x", "10")
    assert overlay.newest("x", None, "") is None


# Asking


@given(
    st.lists(
        st.one_of(
            st.none(),
            st.builds(
                ActivityReport,
                held=st.integers(0, 2),
                open=st.integers(0, 2),
                last_arrival_age=st.one_of(st.none(), st.floats(0, 100)),
            ),
        ),
        max_size=4,
    ),
    st.floats(0.1, 50),
)
def test_quiet_is_said_only_when_everyone_says_so(reports, since):
    verdict = combined_activity(reports, since)
    quiet = bool(reports) and all(
        report is not None
        and not report.held
        and not report.open
        and (report.last_arrival_age is None or report.last_arrival_age >= since)
        for report in reports
    )
    assert (verdict is Activity.QUIET) is quiet
    if any(report and (report.held or report.open) for report in reports):
        assert verdict is Activity.BUSY


# Contests


def test_three_undone_parks_within_an_hour_are_a_contest():
    contest = ScaleConflict()
    contest.record(0.0, "hpa", 60.0)
    contest.record(100.0, "hpa", 60.0)
    assert not contest.is_contested
    contest.record(200.0, "hpa", 60.0)
    assert contest.is_contested
    assert contest.until == 200.0 + 120.0
    contest.record(400.0, "hpa", 60.0)
    assert contest.until == 400.0 + 240.0


def test_undone_parks_far_apart_are_none():
    contest = ScaleConflict()
    for hours in range(5):
        contest.record(hours * 3601.0, "x", 60.0)
    assert not contest.is_contested


def test_a_contest_ends_after_its_wait():
    contest = ScaleConflict()
    for at in (0.0, 1.0, 2.0):
        contest.record(at, "x", 60.0)
    contest.calm(10.0)
    assert contest.is_contested
    contest.calm(4000.0)
    assert not contest.is_contested


def test_the_writer_of_replicas_is_found_in_managed_fields():
    fields = [
        {
            "manager": "helm",
            "time": "2030-01-01T00:00:00Z",
            "fieldsV1": {"f:spec": {"f:replicas": {}}},
        },
        {
            "manager": "kubectl",
            "time": "2030-01-02T00:00:00Z",
            "fieldsV1": {"f:spec": {"f:replicas": {}}},
        },
        {"manager": "kcm", "time": "2030-01-03T00:00:00Z", "fieldsV1": {"f:status": {}}},
    ]
    written, found = unix_seconds("2030-01-02T00:00:00Z"), {"metadata": {"managedFields": fields}}
    assert replicas_writer(found, written + 9) == ("kubectl", written)
    assert replicas_writer(found, written - 9) == ("kubectl", written - 9), "its clock is ahead"
    assert replicas_writer({"metadata": {}}, written) == ("", written)


# Decisions


def test_sleeping_needs_all_and_waking_any():
    sleep, look, stay, wake = (Decision(verdict, verdict.value) for verdict in Verdict)
    assert combined_decision([sleep, look]) is look
    assert combined_decision([look, stay]) is stay
    assert combined_decision([sleep, sleep]).verdict is Verdict.SLEEP
    assert combined_decision([sleep, stay]).verdict is Verdict.STAY
    assert combined_decision([sleep, stay, wake]).verdict is Verdict.WAKE
    assert combined_decision([]).verdict is Verdict.STAY


def test_a_cooldown_of_zero_is_kubeelastis_default():
    assert cooldown_of(elastiservice(cooldown_period=0).spec) == 900.0
    assert cooldown_of(elastiservice(cooldown_period=7).spec) == 7.0


def test_triggers_that_nobody_has_read_yet_are_not_taken_for_none():
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


# Reports


def facts_of(**changes) -> Facts:
    return dataclasses.replace(
        Facts(
            es=elastiservice(),
            now=0.0,
            service=WEB,
            target=target(0),
            resolvers=(ServiceEndpoint(("10.1.0.1",), READY),),
            ports={80: 20001, 5432: 20002},
        ),
        **changes,
    )


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
        "MaySleep",
    }
    assert status_patch(status, status, NOW) is None
    patch = status_patch(ElastiServiceStatus(), status, NOW)
    assert patch is not None
    assert "lastScaledUpTime" not in patch
    assert patch["lastReconciledTime"] == "2030-01-01T00:00:00Z"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"target": None, "target_problem": "gone"}, "TargetMissing"),
        ({"service": None}, "ServiceMissing"),
        ({}, "InOrder"),
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
    assert (found.status, found.message) == ("False", "triggers[0]: no answer")


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


def test_a_new_leader_leaves_what_triggers_said_until_it_has_read_them():
    es = _known_to_a_former_leader()
    unread = Obstacle(Reason.TRIGGERS_UNREAD, "triggers[0] has not been read lately")
    seen = facts_of(es=es, decision=Decision(Verdict.STAY, "", unread))
    for evidence in ((), (Evidence(1.0),)):
        status = status_of(seen, service_state(State.SERVE), evidence, NOW)
        assert status == es.status


@pytest.mark.parametrize("state", [State.SERVE, State.ENGAGING])
def test_what_a_former_leader_said_of_something_else_is_not_left(state):
    es = _known_to_a_former_leader()
    if state is State.SERVE:
        newer = msgspec.structs.replace(es.metadata, generation=4)
        es = msgspec.structs.replace(es, metadata=newer)
    status = status_of(facts_of(es=es), service_state(state), (), NOW)
    (found,) = [c for c in status.conditions if c.type == "TriggersHealthy"]
    assert found.reason == "NotReadYet"


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
    ("before", "after", "why", "surprising"),
    [
        (State.SERVE, State.ENGAGING, "idle for 30 s", False),
        (State.ENGAGING, State.PARKING, "nothing arrived", False),
        (State.PARKING, State.PROXY, "parked", False),
        (State.PROXY, State.WAKING, "a request of a client", False),
        (State.WAKING, State.RELEASING, "an endpoint is ready", False),
        (State.RELEASING, State.SERVE, "traffic goes to the pods", False),
        (State.PROXY, State.WAKING, "scaled up by kubectl", True),
        (State.SERVE, State.PROXY, "scaled to zero by kubectl", True),
        (State.SERVE, State.WAKING, "no endpoint is ready", True),
        (State.ENGAGING, State.RELEASING, "traffic arrived", True),
    ],
)
def test_only_what_no_cycle_has_is_an_event_of_its_own(before, after, why, surprising):
    assert is_surprise(before, after, why) is surprising


def test_a_conditions_time_moves_with_its_status_only():
    old = condition("Ready", holds=True, reason="A")
    (first,) = merged((), [old], now="t1")
    (same,) = merged([first], [condition("Ready", holds=True, reason="B")], now="t2")
    (other,) = merged([same], [condition("Ready", holds=False, reason="C")], now="t3")
    assert [c.last_transition_time for c in (first, same, other)] == ["t1", "t1", "t3"]


def test_policies_that_drop_or_hide_traffic_are_told():
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
    assert '{apiGroups: ["example.com"], resources: [farms/scale], verbs: [get, update]}' in words
    assert "aggregate-to-operator" in words


# The directory


def test_the_oldest_owns_a_service_whatever_the_order():
    first = elastiservice("b", created="2030-01-01T00:00:00Z")
    second = elastiservice("a", created="2030-01-02T00:00:00Z")
    for order in ([first, second], [second, first]):
        directory = Directory()
        for es in order:
            directory.put(es)
        owner = directory.owner("shop", "web")
        assert owner is not None
        assert owner.name == "b"
        assert directory.naming("shop", "web") == (Request("shop", "a"), Request("shop", "b"))
        directory.remove(Request("shop", "b"))
        heir = directory.owner("shop", "web")
        assert heir is not None
        assert heir.name == "a"


def test_what_is_wrong_with_a_spec_is_found_out_for_each_spec():
    directory, request = Directory(), Request("shop", "web")
    bad = elastiservice(enabled_period=EnabledPeriod(schedule="never"))
    directory.put(bad)
    details = directory.get(request)
    assert details is not None
    assert "spec.enabledPeriod.schedule" in str(details.problems[0])
    directory.put(bad)
    assert directory.get(request) is details
    status = ElastiServiceStatus(last_scaled_up_time="2030-01-01T00:00:01Z")
    directory.put(msgspec.structs.replace(bad, status=status))
    later = directory.get(request)
    assert later is not None
    assert (later.problems, later.last_scaled_up) == (details.problems, NOW.timestamp() + 1)
    directory.put(elastiservice())
    mended = directory.get(request)
    assert mended is not None
    assert mended.problems == ()


def test_those_who_share_a_target_are_found():
    directory = Directory()
    directory.put(elastiservice("a", service="one"))
    directory.put(elastiservice("b", service="two"))
    assert directory.sharing(Request("shop", "a")) == (Request("shop", "a"), Request("shop", "b"))
    moved = ScaleTargetRef("apps/v1", "Deployment", "other")
    directory.put(elastiservice("b", service="two", scale_target_ref=moved))
    assert directory.sharing(Request("shop", "a")) == (Request("shop", "a"),)
    assert directory.sharing(Request("shop", "nobody")) == ()


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("xy"), st.booleans()), max_size=20)
)
def test_the_directory_keeps_no_trace_of_what_is_gone(steps):
    directory, present = Directory(), {}
    for name, service, there in steps:
        if there:
            directory.put(elastiservice(name, service=service))
            present[name] = service
        else:
            directory.remove(Request("shop", name))
            present.pop(name, None)
    for service in "xy":
        named = {request.name for request in directory.naming("shop", service)}
        assert named == {name for name, used in present.items() if used == service}
    assert len(directory) == len(present)


# Settings


def test_kubeelastis_variables_are_read():
    settings = OperatorSettings.from_env(
        {
            "ELASTI_RESOLVER_NAMESPACE": "sys",
            "ELASTI_RESOLVER_PORT": "9013",
            "WATCH_NAMESPACES": "a, b,,a",
            "POLLING_INTERVAL": "45s",
            "ELASTI_ENGAGE_SETTLE": "1m",
            "ELASTI_ON_RESOLVER_LOSS": "Wait",
            "ELASTI_AUTHENTICATE": "false",
        }
    )
    assert settings.resolver_namespace == "sys"
    assert settings.resolver_admin_port == 9013
    assert settings.watch_namespaces == ("a", "b")
    assert settings.polling_interval == 45.0
    assert settings.engage_settle == 60.0
    assert settings.on_resolver_loss is OnResolverLoss.WAIT
    assert not settings.authenticate
    assert settings.callers == ("system:serviceaccount:sys:*",)


@pytest.mark.parametrize("text", ["", "0", "-3s", "soon"])
def test_a_useless_polling_interval_is_the_default(text):
    assert OperatorSettings.from_env({"POLLING_INTERVAL": text}).polling_interval == 30.0


def test_every_mistake_is_told_at_once():
    with pytest.raises(SettingsError) as raised:
        OperatorSettings.from_env({"ELASTI_RESOLVER_PORT": "http", "ELASTI_ENGAGE_SETTLE": "soon"})
    assert "ELASTI_RESOLVER_PORT" in str(raised.value)
    assert "ELASTI_ENGAGE_SETTLE" in str(raised.value)


def test_flags_win_and_secrets_are_not_shown():
    environ = {"ELASTI_OPERATOR_PORT": "1", "PROMETHEUS_TRIGGER_AUTHORIZATION_HEADER": "hush"}
    settings = OperatorSettings.from_env(environ, port=2, leader_elect=None)
    assert settings.port == 2
    assert settings.leader_elect
    assert "hush" not in repr(settings)


# Definitions and rights


def test_our_own_definition_lacks_nothing_and_kubeelastis_does():
    ours = custom_resource_definition()
    assert missing_fields(ours) == []
    theirs = msgspec.json.decode(msgspec.json.encode(ours))
    properties = theirs["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    del properties["spec"]["properties"]["wake"]
    del properties["spec"]["properties"]["enabledPeriod"]["properties"]["timezone"]
    del properties["spec"]["properties"]["probeResponse"]["items"]["properties"]["method"]
    del properties["status"]["properties"]["resolverPorts"]
    assert missing_fields(theirs) == [
        "spec.enabledPeriod.timezone",
        "spec.probeResponse[].method",
        "spec.wake",
        "status.resolverPorts",
    ]
    assert schema_hash(theirs) != schema_hash(ours)
    assert API_VERSION


def test_no_right_is_for_everything():
    for rule in (*NAMESPACED_RULES, *CLUSTER_RULES, *LEASE_RULES):
        assert "*" not in (rule.group, *rule.resources, *rule.verbs)
        assert rule.why
