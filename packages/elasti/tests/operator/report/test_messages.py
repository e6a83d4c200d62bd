"""What the operator says: refusals, warnings, mistakes in specs, and never a secret. On both servers."""

from __future__ import annotations

import functools
import json

import aiohttp
import pytest
from tests.controllers.support import deployment
from tests.operator.rig import FakePrometheus, Rig
from tests.operator.servers import everywhere_fast

from kubeloop.objects.meta import JsonObject
from kubeloop.objects.patches import MergePatch
from tests.waiting import eventually

pytestmark = [everywhere_fast, pytest.mark.timeout(180)]

UDP = {"name": "dns", "port": 53, "protocol": "UDP"}
REFUSED: dict[str, tuple[JsonObject, str]] = {
    "headless": ({"clusterIP": "None"}, "cluster IP"),
    "external-name": ({"type": "ExternalName", "externalName": "example.com"}, "ClusterIP"),
    "internal-traffic-policy-local": ({"internalTrafficPolicy": "Local"}, "Cluster"),
    "publish-not-ready-addresses": ({"publishNotReadyAddresses": True}, "publishNotReadyAddresses"),
    "no-selector": ({"selector": None}, "selector"),
    "no-tcp-port": ({"ports": [UDP]}, "TCP port"),
    "other-pods": ({"selector": {"app": "elsewhere"}}, "app=elsewhere"),
    "no-such-port": (
        {"ports": [{"port": 80, "targetPort": "nope"}]},
        "nope",
    ),
}
REASONS = {
    "headless": "HeadlessService",
    "external-name": "ExternalNameService",
    "internal-traffic-policy-local": "InternalTrafficPolicyLocal",
    "publish-not-ready-addresses": "PublishNotReadyAddresses",
    "no-selector": "NoSelector",
    "no-tcp-port": "NoTCPPort",
    "other-pods": "SelectsOtherPods",
    "no-such-port": "NoSuchPort",
}


async def test_what_cannot_sleep_is_refused_with_a_remedy_and_left_alone(
    rig: Rig, prometheus: FakePrometheus
):
    for name, (spec, _) in REFUSED.items():
        await rig.cluster.deployments.create(deployment(name, 0))
        await rig.service(name, **spec)
        await rig.elastiservice(name, triggers=[prometheus.trigger()])
    async with rig.operator() as operator:
        for name, (_, remedy) in REFUSED.items():
            told = await rig.tells("Ready", REASONS[name], name)
            assert told["status"] == "False"
            assert f"Service {name}" in told["message"]
            assert remedy in told["message"]
            await eventually(functools.partial(rig.events, REASONS[name]))
        before = len(prometheus.queries)
        await eventually(lambda: len(prometheus.queries) > before + 8)
        for name in REFUSED:
            assert await rig.slice(name) is None
            assert await rig.replicas(name) == 0
        # Traffic cannot be held there, but whoever asks for a wake-up gets one.
        assert (await rig.wake(operator, "headless"))[0] == 202
        assert await rig.replicas("headless") == 1


async def test_another_service_on_the_same_pods_is_reported_while_it_exists(rig: Rig):
    await rig.web(replicas=0)
    async with rig.operator():
        await rig.becomes("Proxy")
        await rig.service("second", selector={"app": "web"})
        await rig.says("Ready", "second")
        await rig.cluster.services.patch("second", MergePatch({"spec": {"selector": {"app": "x"}}}))

        async def silent() -> bool:
            return "second" not in (await rig.condition("Ready")).get("message", "")

        await eventually(silent)
        await rig.cluster.services.patch(
            "second", MergePatch({"spec": {"selector": {"app": "web"}}})
        )
        await rig.says("Ready", "second")
        await rig.cluster.services.delete("second")
        await eventually(silent)


async def test_a_target_whose_service_becomes_impossible_is_woken_and_let_go(rig: Rig):
    await rig.web(replicas=0)
    async with rig.operator():
        await rig.becomes("Proxy")
        wrong = {"spec": {"internalTrafficPolicy": "Local"}}
        await rig.cluster.services.patch("web", MergePatch(wrong))
        await rig.becomes("Serve")
        assert await rig.replicas() == 1
        assert await rig.slice() is None
        await rig.tells("Ready", "InternalTrafficPolicyLocal")
        right = {"spec": {"internalTrafficPolicy": "Cluster"}}
        await rig.cluster.services.patch("web", MergePatch(right))
        await rig.tells("Ready", "Valid")
        await rig.scale(0)
        await eventually(rig.addresses)


async def test_what_may_surprise_is_warned_of_and_sleeps_all_the_same(rig: Rig):
    await rig.cluster.deployments.create(deployment("web", 0))
    http = {"name": "http", "port": 80, "targetPort": 8080}
    await rig.service(ports=[http, UDP])
    await rig.service("backdoor", selector={"app": "web"})
    # One with an ElastiService of its own wakes the target, too.
    await rig.service("side", selector={"app": "web"})
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}
    await rig.elastiservice("side", scaleTargetRef=target)
    hpas = rig.client.resource("autoscaling/v2/horizontalpodautoscalers", namespace=rig.namespace)
    await hpas.create(_hpa("web", minimum=0))
    await rig.elastiservice(autoscaler={"type": "hpa", "name": "web"})
    async with rig.operator():
        await rig.becomes("Proxy")
        told = await rig.tells("Ready", "Valid")
        assert told["status"] == "True"
        for words in (
            "53/UDP ",
            "(backdoor)",
            "readiness probe",
            "HPA web ",
        ):
            assert words in told["message"]
        for reason in ("PortsIgnored", "SharedPods", "NoReadinessProbe", "HPAScalesToZero"):
            await eventually(functools.partial(rig.events, reason))
        assert await rig.addresses() == [rig.resolver.shown]


def _hpa(name: str, *, minimum: int) -> JsonObject:
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": name}
    external = {
        "metric": {"name": "requests"},
        "target": {"type": "AverageValue", "averageValue": "1"},
    }
    return {
        "metadata": {"name": name},
        "spec": {
            "scaleTargetRef": target,
            "minReplicas": minimum,
            "maxReplicas": 3,
            "metrics": [{"type": "External", "external": external}],
        },
    }


# Specs that a schema cannot refuse

WRONG: dict[str, tuple[JsonObject, str]] = {
    "bad-cron": (
        {"enabledPeriod": {"schedule": "0 5-1 * * *", "duration": "1h"}},
        "spec.enabledPeriod.schedule: '0 5-1 * * *'",
    ),
    "no-duration": (
        {"enabledPeriod": {"schedule": "0 0 * * *", "duration": "0s"}},
        "spec.enabledPeriod.duration: '0s'",
    ),
    "endless-duration": (
        {"enabledPeriod": {"schedule": "0 0 * * *", "duration": "99999999h"}},
        "spec.enabledPeriod.duration: '99999999h'",
    ),
    "unknown-zone": (
        {"enabledPeriod": {"timezone": "Middle/Earth"}},
        "spec.enabledPeriod.timezone: 'Middle/Earth'",
    ),
    "bad-pattern": (
        {"probeResponse": [{"path": {"type": "RegularExpression", "value": "(["}}]},
        "spec.probeResponse[0].path.value: '([' is not a regular expression",
    ),
    "threshold-in-words": (
        {"triggers": [{"type": "prometheus", "metadata": {"query": "up", "threshold": "few"}}]},
        "spec.triggers[0].metadata: threshold 'few' is not a number",
    ),
    "no-threshold": (
        {"triggers": [{"type": "prometheus", "metadata": {"query": "up"}}]},
        "spec.triggers[0].metadata: prometheus trigger: metadata.threshold is required; add it",
    ),
    "bad-metric": (
        {"triggers": [{"type": "pods", "metadata": {"metric": "9 lives", "threshold": 1}}]},
        "spec.triggers[0].metadata: pods trigger",
    ),
    "headers-of-a-strange-kind": (
        {
            "triggers": [
                {
                    "type": "prometheus",
                    "metadata": {"query": "up", "threshold": 1, "headers": "hush"},
                }
            ]
        },
        "spec.triggers[0].metadata: prometheus trigger",
    ),
}


async def test_a_spec_that_no_schema_can_refuse_has_a_condition_and_never_sleeps(
    rig: Rig, prometheus: FakePrometheus
):
    for name, (spec, _) in WRONG.items():
        await rig.cluster.deployments.create(deployment(name, 1))
        await rig.service(name)
        await rig.elastiservice(name, **{"triggers": [prometheus.trigger()], **spec})
    await rig.web(triggers=[prometheus.trigger()])
    async with rig.operator() as operator:
        for name, (_, words) in WRONG.items():
            told = await rig.tells("Ready", "InvalidSpec", name)
            assert told["status"] == "False"
            assert words in told["message"]
            assert "hush" not in told["message"]
            assert "hush" not in (await rig.condition("TriggersHealthy", name))["message"]
        # The operator goes on: a good one sleeps beside them, none of them does, all can be woken.
        await rig.becomes("Proxy")
        for name in WRONG:
            assert await rig.replicas(name) == 1
            assert (await rig.wake(operator, name))[0] == 202
        # Corrected, it is in order at once.
        right = {"spec": {"enabledPeriod": {"schedule": "0 0 * * *", "duration": "24h"}}}
        await rig.elastiservices.patch("bad-cron", MergePatch(right))
        await rig.tells("Ready", "Valid", "bad-cron")
        await rig.becomes("Proxy", "bad-cron")


async def test_a_trigger_that_cannot_be_used_says_why_and_keeps_its_target_awake(
    rig: Rig, prometheus: FakePrometheus
):
    prometheus.answers = {
        "two": [1.0, 2.0],
        "none": [],
        "infinite": [float("inf")],
        "nan": [float("nan")],
    }
    triggers: dict[str, tuple[JsonObject, str]] = {
        name: (prometheus.trigger(name), words)
        for name, words in {
            "two": " 2 series",
            "none": "`or vector(0)`",
            "infinite": "infinite",
            "nan": "NaN",
        }.items()
    }
    nowhere = {"serverAddress": "http://127.0.0.1:1", "query": "up", "threshold": 1}
    homeless = {"query": "up", "threshold": 1}
    pods = {"metric": "requests_total", "threshold": 1, "port": "metrics"}
    triggers |= {
        "refused": ({"type": "prometheus", "metadata": nowhere}, "Connection refused"),
        "homeless": (
            {"type": "prometheus", "metadata": homeless},
            "metadata.serverAddress",
        ),
        "unknown-port": ({"type": "pods", "metadata": pods}, "'metrics'"),
    }
    for name, (trigger, _) in triggers.items():
        await rig.web(name=name, triggers=[trigger])
    await rig.web(triggers=[prometheus.trigger()])
    async with rig.operator():
        for name, (_, words) in triggers.items():
            told = await rig.says("TriggersHealthy", words, name)
            assert (told["status"], told["reason"]) == ("False", "Failing")
            assert "triggers[0]" in told["message"]
        await rig.becomes("Proxy")
        for name in triggers:
            assert await rig.replicas(name) == 1


# Secrets

SECRETS = ("hush-header", "hush-default", "hush-address")


async def test_no_secret_of_a_trigger_is_shown(
    rig: Rig, prometheus: FakePrometheus, capfd: pytest.CaptureFixture[str]
):
    """Headers and credentials in addresses, of triggers that work and of such that fail."""
    host = prometheus.url.removeprefix("http://")
    works, fails = prometheus.trigger(), prometheus.trigger()
    for trigger in (works, fails):
        trigger["metadata"]["headers"] = {"X-Scope": "hush-header"}
    works["metadata"]["serverAddress"] = f"http://user:hush-address@{host}"
    fails["metadata"]["serverAddress"] = "http://user:hush-address@127.0.0.1:1"
    refused = {**fails["metadata"], "serverAddress": f"http://user:hush-address@{host}/nowhere"}
    await rig.web(name="works", triggers=[works])
    await rig.web(name="fails", triggers=[fails])
    await rig.web(name="refused", triggers=[{"type": "prometheus", "metadata": refused}])
    odd = {**works["metadata"], "headers": {"X-Scope": ["hush-header"]}}
    await rig.web(name="odd", triggers=[{"type": "prometheus", "metadata": odd}])
    async with rig.operator(
        trigger_variables={"PROMETHEUS_TRIGGER_AUTHORIZATION_HEADER": "Bearer hush-default"}
    ) as operator:
        await rig.becomes("Proxy", "works")
        assert (await rig.wake(operator, "works"))[0] == 202
        for name in ("fails", "refused"):
            await rig.tells("TriggersHealthy", "Failing", name)
        await rig.tells("Ready", "InvalidSpec", "odd")
        base = f"http://127.0.0.1:{operator.server.port}"
        told = [await _get(f"{base}{path}") for path in ("/crd-cache", "/metrics", "/readyz")]
        told += [
            json.dumps(await rig.status(name)) for name in ("works", "fails", "refused", "odd")
        ]
        await eventually(lambda: rig.events("InvalidSpec"))
        told += [json.dumps(event) for event in await rig.cluster.list("events")]
        told.append(repr(operator.settings))
    told += capfd.readouterr()
    assert prometheus.headers["X-Scope"] == "hush-header", "it was asked with the secret"
    assert prometheus.headers["Authorization"].startswith(("Bearer hush-default", "Basic "))
    for secret in SECRETS:
        assert [text for text in told if secret in text] == []


async def _get(url: str) -> str:
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        return await response.text()
