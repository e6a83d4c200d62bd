"""Enrolment on a cluster in memory, in virtual time."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.log_lines import capture_logs
from tests.operator.environment import NAMESPACE, Environment, FakeTrigger

from elasti.api.crd import template_definition
from elasti.api.names import (
    API_VERSION,
    ENROLLED_LABEL,
    SLEEP_LABEL,
    TEMPLATE_ANNOTATION,
)
from elasti.operator.enrolment.controller import EnrolmentController, without
from elasti.operator.report.events import EventReporter
from elasti.operator.watch.caches import OperatorCaches
from kubeloop.aio.tasks import finish
from kubeloop.objects.meta import JsonObject
from kubeloop.objects.patches import MergePatch
from kubeloop.testing.fake_client import FakeClient
from tests.waiting import eventually

pytestmark = pytest.mark.virtual_time

ELASTISERVICES = f"/apis/{API_VERSION}/namespaces/{NAMESPACE}/elastiservices/"
TRIGGER = {
    "type": "prometheus",
    "metadata": {"query": "q", "threshold": "1", "serverAddress": "http://x"},
}


@pytest.fixture(autouse=True)
def trigger(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeTrigger.install(monkeypatch)


def enrolling(count: int = 0, **settings: Any) -> Environment:
    """An environment with the Service `web`, or with many, a template, and no ElastiService."""
    env = Environment(enrolment=True, **settings)
    env.server.put(template_definition())
    template(env)
    if count:
        env.server.on_change.clear()  # pods of so many would be most of the work
    for name in [f"web-{n}" for n in range(count)] or ["web"]:
        env.web(name=name)
        env.delete("elastiservices", name)
    return env


def template(env: Environment, name: str = "default", **spec: Any) -> None:
    content = {"cooldownPeriod": 30, "triggers": [TRIGGER], **spec}
    kind = {"apiVersion": API_VERSION, "kind": "ElastiTemplate"}
    env.server.put({**kind, "metadata": {"name": name}, "spec": content})


def label(env: Environment, value: str = "", name: str = "web", **annotations: str) -> None:
    found = env.get("services", name)
    found["metadata"]["labels"] = {SLEEP_LABEL: value} if value else {}
    found["metadata"]["annotations"] = annotations
    env.put("services", found, name)


def label_namespace(env: Environment, value: str = "") -> None:
    env.put(
        "namespaces", {"metadata": {"labels": {SLEEP_LABEL: value} if value else {}}}, NAMESPACE
    )


def spec(env: Environment) -> JsonObject:
    return dict((env.es or {}).get("spec") or {})


async def test_a_label_enrols_and_its_removal_leaves_nothing():
    env = enrolling()
    async with env.operator() as operator:
        await asyncio.sleep(30)
        assert env.es is None
        label(env, "enforce")
        await env.becomes("Proxy")
        assert env.get("elastiservices")["metadata"]["labels"] == {ENROLLED_LABEL: "true"}
        assert env.replicas == 0
        label(env)
        await eventually(lambda: env.es is None, timeout=300)
        assert env.replicas == 1
        await asyncio.sleep(300)
        assert (env.es, env.published) == (None, False)
        applied = [one for one in operator.client.writes if one == f"PATCH {ELASTISERVICES}web"]
    assert {"Enrolled", "EnrolmentEnded"} <= {*env.reasons()}
    assert len(applied) < 10


async def test_the_lines_of_a_reconcile_have_its_id():
    env = enrolling()
    with capture_logs() as lines:
        async with env.operator():
            label(env, "enforce")
            await env.becomes("Serve")
    [line] = [line for line in lines if line["event"] == "Enrolled"]
    assert (line["namespace"], line["name"]) == (NAMESPACE, "web")
    assert line["reconcile_id"]


async def test_nothing_happens_unless_the_installation_says_so():
    env = enrolling()
    env.settings = Environment().settings
    label(env, "enforce")
    async with env.operator():
        await asyncio.sleep(600)
    assert env.es is None


@contextlib.asynccontextmanager
async def enrolment_alone(env: Environment) -> AsyncIterator[FakeClient]:
    """Run enrolment without the rest of an operator."""
    client = FakeClient(namespace=NAMESPACE, server=env.server)
    caches = OperatorCaches.of(client, env.settings)
    recorder: Any = env.recorder
    enrolment = EnrolmentController(
        client=client,
        settings=env.settings,
        clock=env.clock,
        services=caches.services,
        elastiservices=caches.elastiservices,
        reporter=EventReporter(recorder),
    )
    tasks = [asyncio.create_task(one.run()) for one in (caches.manager, enrolment)]
    try:
        yield client
    finally:
        await finish(tasks)


async def test_a_thousand_services_are_written_at_a_steady_pace():
    env = enrolling(1000)
    async with enrolment_alone(env) as client:
        await asyncio.sleep(5)
        label_namespace(env, "observe")
        await asyncio.sleep(20)
        assert 150 <= len(env.all("elastiservices")) <= 210
        await eventually(lambda: len(env.all("elastiservices")) == 1000, timeout=200, every=1)
        assert len(client.writes) == 1000
        await asyncio.sleep(900)
        assert len(client.writes) == 1000

        template(env, cooldownPeriod=45)
        await asyncio.sleep(20)
        assert 1150 <= len(client.writes) <= 1210
        await asyncio.sleep(180)
        assert len(client.writes) == 2000
        assert all(es["spec"]["cooldownPeriod"] == 45 for es in env.all("elastiservices"))

        label_namespace(env)
        await eventually(lambda: not env.all("elastiservices"), timeout=200, every=1)
        assert len(client.writes) == 3000


async def test_a_fleet_that_partly_sleeps_is_un_enrolled_awake_and_leaves_nothing():
    env = enrolling(6, finalize_wait=30.0)
    names = [f"web-{n}" for n in range(6)]
    before = {one["metadata"]["name"]: one["spec"] for one in env.all("services")}
    slices = len(env.all("endpointslices"))
    label_namespace(env, "observe")
    for name in names[:4]:
        label(env, "enforce", name)

    def awake() -> set[str]:
        return {name for name in names if env.get("deployments", name)["spec"]["replicas"] == 1}

    async with env.operator():
        await eventually(lambda: awake() == set(names[4:]), timeout=900)
        label_namespace(env)
        for name in names:
            label(env, "", name)
        await eventually(lambda: not env.all("elastiservices"), timeout=900)
        assert awake() == set(names)
        await asyncio.sleep(300)
        assert awake() == set(names)
    assert {one["metadata"]["name"]: one["spec"] for one in env.all("services")} == before
    assert len(env.all("endpointslices")) == slices


async def test_what_is_enrolled_works_on_when_enrolment_is_disabled():
    env = enrolling()
    label(env, "enforce")
    async with env.operator():
        await env.becomes("Proxy")
    env.settings = dataclasses.replace(env.settings, enrolment=False)
    async with env.operator():
        label(env)
        await asyncio.sleep(600)
        assert (env.state, env.replicas) == ("Proxy", 0)
        await env.server.resource(f"{API_VERSION}/elastiservices", namespace=NAMESPACE).delete(
            "web"
        )
        await eventually(lambda: env.es is None, timeout=300)
        assert (env.replicas, env.published) == (1, False)


async def test_an_enrolled_fleet_writes_status_once_an_hour():
    env = enrolling(5, polling_interval=900.0)
    label_namespace(env, "observe")
    async with env.operator() as operator:
        await asyncio.sleep(1800)
        before = len(operator.client.writes)
        await asyncio.sleep(2 * 3600)
        later = operator.client.writes[before:]
    assert all(one.endswith("/status") for one in later)
    assert 5 <= len(later) <= 5 * 2


async def test_an_edited_template_is_rolled_out_and_a_persons_edit_stays():
    env = enrolling()
    label(env, "observe")
    async with env.operator():
        await eventually(lambda: env.es is not None, timeout=60)
        person = env.server.resource(f"{API_VERSION}/elastiservices", namespace=NAMESPACE)
        await person.patch(
            "web", MergePatch({"spec": {"cooldownPeriod": 77}}), field_manager="kubectl"
        )
        template(env, cooldownPeriod=45, wake={"page": {"mode": "Auto"}})
        await eventually(lambda: "wake" in spec(env), timeout=60)
        assert spec(env)["cooldownPeriod"] == 77
        writes = len(env.server.writes)
        await asyncio.sleep(600)
        assert len(env.server.writes) == writes


async def test_each_obstacle_is_reported_once():
    env = enrolling()
    label(env, "observe", **{TEMPLATE_ANNOTATION: "nightly"})
    async with env.operator():
        await asyncio.sleep(1200)
        assert env.reasons() == ["TemplateMissing"]
        assert "nightly" in env.messages()
        template(env, "nightly")
        await eventually(lambda: env.es is not None, timeout=60)


async def test_one_written_by_hand_takes_over():
    env = enrolling()
    label(env, "observe")
    async with env.operator():
        await eventually(lambda: env.es is not None, timeout=60)
        target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}
        hand: JsonObject = {"spec": {"service": "web", "scaleTargetRef": target}}
        env.put("elastiservices", hand, "by-hand")
        await eventually(lambda: env.es is None, timeout=60)
        await asyncio.sleep(600)
    assert [es["metadata"]["name"] for es in env.all("elastiservices")] == ["by-hand"]


async def test_the_namespaces_enforce_begins_after_the_observation():
    env = enrolling(enrolment_observe_for=900.0, polling_interval=60.0)
    label_namespace(env, "enforce")
    async with env.operator():
        await asyncio.sleep(840)
        assert (spec(env)["policy"], env.replicas) == ("Observe", 1)
        await env.becomes("Proxy", within=1200)
        assert spec(env)["policy"] == "Enforce"
        await asyncio.sleep(900)
        assert spec(env)["policy"] == "Enforce"
        label(env, "never")
        await eventually(lambda: env.es is None, timeout=300)
        assert env.replicas == 1


async def test_another_leader_writes_nothing_again():
    env = enrolling()
    label(env, "observe")
    async with env.operator():
        await eventually(lambda: bool(env.status.get("observed")), timeout=60)
    version = env.get("elastiservices")["metadata"]["generation"]
    async with env.operator() as operator:
        await asyncio.sleep(60)
        assert f"PATCH {ELASTISERVICES}web" not in operator.client.writes
    assert env.get("elastiservices")["metadata"]["generation"] == version


async def test_the_autoscaler_is_named_as_elasti_enable_does():
    env = enrolling()
    env.put("scaledobjects", {"spec": {"scaleTargetRef": {"name": "web"}}}, "shop-web")
    label(env, "observe")
    async with env.operator():
        await eventually(lambda: env.es is not None, timeout=60)
    assert spec(env)["autoscaler"] == {"type": "keda", "name": "shop-web"}


def test_a_conflict_drops_the_field_or_a_list_without_names():
    office = {"name": "x", "keep": "Free", "during": "Mon 08:00-09:00"}
    lists = {"schedules": [office, {"name": "y"}], "triggers": [TRIGGER]}
    body = {"spec": {"a": 1, "wake": {"page": {"mode": "Off"}}, **lists}}
    fields = [
        ".spec.wake.page.mode",
        '.spec.schedules[name="x"].keep',
        '.spec.schedules[name="z"].keep',
        ".spec.triggers",
        ".spec.absent.field",
    ]
    schedules = [{"name": "x", "during": "Mon 08:00-09:00"}, {"name": "y"}]
    assert without(body, fields) == {"spec": {"a": 1, "wake": {"page": {}}, "schedules": schedules}}
