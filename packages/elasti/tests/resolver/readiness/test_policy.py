"""When a pod may be given traffic, and how it is asked."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.resolver.cluster import pod

from elasti.resolver.projections import DatabaseKind
from elasti.resolver.readiness.plan import (
    PlannedProbe,
    ProbePlan,
    ReadinessFacts,
    ReadinessStep,
    next_step,
    plan_of,
)
from kubeloop.objects.core import GrpcAction, HttpGetAction, Pod, TcpSocketAction

PROBES = ProbePlan((PlannedProbe(TcpSocketAction(80), 80),))
ASKS = ProbePlan((PlannedProbe(TcpSocketAction(80), 80), PlannedProbe(HttpGetAction(81), 81)))
DATABASE = ProbePlan((PlannedProbe(DatabaseKind.REDIS, 6379),))
ONLY_READY = ProbePlan(only_ready="exec")


@pytest.mark.parametrize(
    ("facts", "step"),
    [
        ({"policy": "Auto", "ready": True}, ReadinessStep.RELEASE),
        ({"policy": "Ready", "ready": True}, ReadinessStep.RELEASE),
        ({"policy": "TCP", "ready": True}, ReadinessStep.RELEASE),
        ({"policy": "Ready", "ready": False, "accepts": True}, ReadinessStep.AWAIT_READY),
        ({"policy": "TCP", "ready": False}, ReadinessStep.CONNECT),
        ({"policy": "TCP", "ready": False, "accepts": True}, ReadinessStep.RELEASE),
        ({"policy": "Auto", "ready": False}, ReadinessStep.CONNECT),
        ({"policy": "Auto", "ready": False, "accepts": True}, ReadinessStep.LEARN),
        ({"policy": "Auto", "ready": False, "accepts": True, "plan": ProbePlan()}, ReadinessStep.RELEASE),
        ({"policy": "Auto", "ready": False, "accepts": True, "plan": PROBES}, ReadinessStep.PROBE),
        ({"policy": "Auto", "ready": False, "accepts": True, "plan": PROBES, "passed": True}, ReadinessStep.RELEASE),
        ({"policy": "Auto", "ready": False, "accepts": True, "plan": ONLY_READY}, ReadinessStep.AWAIT_READY),
        ({"policy": "Auto", "ready": False, "accepts": True, "plan": PROBES, "is_http": False}, ReadinessStep.AWAIT_READY),
        ({"policy": "Auto", "ready": False, "accepts": True, "plan": ASKS, "is_http": False}, ReadinessStep.PROBE),
        ({"policy": "Auto", "ready": False, "accepts": True, "plan": ProbePlan(), "is_http": False}, ReadinessStep.RELEASE),
        ({"policy": "Protocol", "ready": False, "accepts": True, "plan": PROBES, "is_http": False}, ReadinessStep.AWAIT_READY),
        ({"policy": "Protocol", "ready": False, "accepts": True, "plan": DATABASE, "is_http": False}, ReadinessStep.PROBE),
        ({"policy": "TCP", "ready": False, "accepts": True, "is_http": False}, ReadinessStep.RELEASE),
        ({"policy": "Auto", "ready": True, "has_refused": True}, ReadinessStep.CONNECT),
        ({"policy": "Ready", "ready": True, "has_refused": True}, ReadinessStep.CONNECT),
        ({"policy": "Ready", "ready": True, "has_refused": True, "accepts": True}, ReadinessStep.RELEASE),
    ],
)  # fmt: skip
def test_the_next_step(facts, step):
    assert next_step(ReadinessFacts(**facts)) is step


FACTS = st.builds(
    ReadinessFacts,
    policy=st.sampled_from(["Auto", "Ready", "TCP", "Protocol"]),
    ready=st.booleans(),
    has_refused=st.booleans(),
    accepts=st.booleans(),
    plan=st.sampled_from([None, ProbePlan(), PROBES, ONLY_READY]),
    passed=st.booleans(),
    is_http=st.booleans(),
)


@given(FACTS)
def test_nothing_is_released_without_a_reason(facts):
    if next_step(facts) is ReadinessStep.RELEASE:
        assert facts.ready or (facts.accepts and facts.policy != "Ready")
        assert facts.accepts or not facts.has_refused


@given(FACTS)
def test_ready_always_counts_unless_the_pod_has_refused_since(facts):
    if facts.ready and not facts.has_refused:
        assert next_step(facts) is ReadinessStep.RELEASE


def plan(*containers, **spec):
    return plan_of(msgspec.convert(pod("p", *containers, **spec), Pod))


def test_all_startup_probes_come_before_all_readiness_probes():
    found = plan(
        {"name": "a", "readinessProbe": {"httpGet": {"port": 1}}, "startupProbe": {"tcpSocket": {"port": 2}}},
        {"name": "b", "startupProbe": {
            "grpc": {"port": 3}, "timeoutSeconds": 5, "successThreshold": 2, "initialDelaySeconds": 7, "periodSeconds": 3
        }},
    )  # fmt: skip
    assert [question.port for question in found.questions] == [2, 3, 1]
    assert found.questions[1] == PlannedProbe(
        GrpcAction(3), 3, timeout=5.0, successes=2, delay=7.0, period=3.0
    )


def test_named_ports_are_the_containers():
    found = plan(
        {
            "ports": [{"name": "web", "containerPort": 8080}],
            "readinessProbe": {"httpGet": {"port": "web"}},
        }
    )
    assert found.questions[0].port == 8080


def test_sidecars_are_asked_and_plain_init_containers_are_not():
    probe = {"readinessProbe": {"tcpSocket": {"port": 1}}}
    found = plan(
        {}, initContainers=[{"restartPolicy": "Always", **probe}, {"name": "once", **probe}]
    )
    assert len(found.questions) == 1


def test_a_pod_without_probes_has_no_questions():
    assert plan({"name": "a"}) == ProbePlan()


@pytest.mark.parametrize(
    ("container", "spec"),
    [
        ({"readinessProbe": {"exec": {"command": ["true"]}}}, {}),
        ({"startupProbe": {"exec": {"command": ["true"]}}, "readinessProbe": {"tcpSocket": {"port": 1}}}, {}),
        ({"readinessProbe": {"tcpSocket": {"port": 1}}}, {"readinessGates": [{"conditionType": "x"}]}),
        ({"readinessProbe": {"httpGet": {"port": 80, "host": "169.254.169.254"}}}, {}),
        ({"readinessProbe": {"httpGet": {"port": "nobody"}}}, {}),
        ({"readinessProbe": {}}, {}),
    ],
)  # fmt: skip
def test_what_cannot_be_asked_is_left_to_kubernetes(container, spec):
    found = plan(container, **spec)
    assert found.only_ready
    assert not found.questions


@pytest.mark.parametrize(
    ("app_protocol", "name", "port", "database"),
    [
        ("postgresql", "http", 80, DatabaseKind.POSTGRESQL),
        (None, "postgres-main", 80, DatabaseKind.POSTGRESQL),
        (None, "tcp-mysql", 3306, DatabaseKind.MYSQL),
        (None, None, 5432, DatabaseKind.POSTGRESQL),
        (None, "redis", 5432, DatabaseKind.REDIS),
        (None, "http", 80, None),
    ],
)
def test_what_a_port_speaks_is_read_from_what_it_is_called(app_protocol, name, port, database):
    assert DatabaseKind.of_port(app_protocol=app_protocol, name=name, port=port) is database
