from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest
import yaml

from elasti.api.types import ElastiService, ScaleTrigger
from elasti.api.validation import problems_of
from kubeloop.objects.codec import codec_for

# An object as KubeElasti's users write it today.
KUBEELASTI = """
apiVersion: elasti.truefoundry.com/v1alpha1
kind: ElastiService
metadata:
  name: web
  namespace: shop
spec:
  cooldownPeriod: 300
  minTargetReplicas: 2
  probeResponse:
    - method: GET
      path: {type: PathPrefix, value: /healthz}
      response: {status: 200, body: '{"ok":true}'}
  scaleTargetRef: {apiVersion: apps/v1, kind: deployments, name: web}
  service: web
  triggers:
    - type: prometheus
      metadata:
        query: sum(rate(requests_total[1m])) or vector(0)
        serverAddress: http://prometheus:9090
        threshold: "0.01"
  autoscaler: {name: web-scaler, type: keda}
  enabledPeriod: {schedule: 0 9 * * 1-5, duration: 8h}
status:
  mode: proxy
  lastReconciledTime: "2026-01-01T00:00:00Z"
"""


def read(text: str) -> ElastiService:
    return msgspec.convert(yaml.safe_load(text), ElastiService)


def test_a_manifest_of_kubeelasti_is_read_unchanged():
    service = read(KUBEELASTI)
    assert service.spec.min_target_replicas == 2
    assert service.spec.autoscaler is not None
    assert service.spec.autoscaler.type == "keda"
    assert service.spec.probe_response[0].response.body == '{"ok":true}'
    assert service.spec.enabled_period is not None
    assert service.spec.enabled_period.timezone == "UTC"
    assert service.status.mode == "proxy"


def test_what_is_left_out_has_its_default():
    minimal = (
        "spec: {service: web, scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: web}}"
    )
    spec = read(minimal).spec
    assert (spec.min_target_replicas, spec.cooldown_period) == (1, 900)
    assert (spec.wake.timeout_seconds, spec.wake.max_held, spec.wake.probe) == (600, 10_000, "Auto")
    assert spec.deletion_policy == "ScaleUp"


@pytest.mark.parametrize(
    ("fragment", "field"),
    [
        ("cooldownPeriod: -1", "cooldownPeriod"),
        ("minTargetReplicas: 0", "minTargetReplicas"),
        ("deletionPolicy: Keep", "deletionPolicy"),
        ("wake: {probe: HTTP}", "wake.probe"),
        ("triggers: [{type: 7}]", "triggers[0].type"),
    ],
)
def test_a_bad_value_is_refused_with_the_name_of_its_field(fragment, field):
    text = (
        "spec:\n  service: web\n"
        "  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: web}\n"
        f"  {fragment}\n"
    )
    with pytest.raises(msgspec.ValidationError, match=re.escape(field)):
        read(text)


LENIENT = {
    "metadata": {"name": "web", "namespace": "shop"},
    "spec": {
        "service": "web",
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
        "triggers": [{"type": ""}],
    },
    "status": {"resolverPorts": [{"port": 80, "resolverPort": 20001}]},
}


def test_an_object_that_another_definition_let_pass_keeps_its_service_target_and_ports():
    found = codec_for(ElastiService).decode(msgspec.json.encode(LENIENT))
    assert found.unreadable.startswith("spec.triggers[0].type: Expected `str` of length >= 1")
    assert found.spec.service == "web"
    assert found.spec.scale_target_ref.kind == "Deployment"
    assert found.spec.triggers == ()
    assert found.status.resolver_ports[0].resolver_port == 20001
    (problem,) = problems_of(found)
    assert problem.field == "spec.triggers[0].type"


def test_of_a_hopeless_object_only_its_name_is_kept():
    broken = {**LENIENT, "spec": {"service": 5, "scaleTargetRef": "web"}, "status": "fine"}
    found = codec_for(ElastiService).decode(msgspec.json.encode(broken))
    assert found.unreadable
    assert (found.metadata.name, found.spec.service) == ("web", "")
    assert found.status.resolver_ports == ()


def without_triggers(status: dict[str, Any] | None = None, **spec: Any) -> ElastiService:
    ref = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}
    fields = {"spec": {"service": "web", "scaleTargetRef": ref, **spec}, "status": status or {}}
    return msgspec.convert(fields, ElastiService)


def reported(reason: str) -> dict[str, Any]:
    condition = {"type": "TriggersHealthy", "status": "False", "reason": reason}
    return {"phase": "Awake", "observedGeneration": 3, "conditions": [condition]}


@pytest.mark.parametrize("reason", ["NoTriggers", "NotReadYet"])
def test_an_empty_list_that_is_taken_away_is_left_out(reason):
    """NotReadYet: the default was taken, and its triggers are not in status yet."""
    es = without_triggers(reported(reason)).with_default_triggers(("network",))
    assert es.spec.triggers == (ScaleTrigger("network"),)


def test_triggers_left_out_are_the_installations():
    new = without_triggers().with_default_triggers(("network",))
    assert new.spec.triggers == (ScaleTrigger("network"),)
    known = without_triggers({"observedGeneration": 1, "triggers": [{"type": "network"}]})
    assert known.with_default_triggers(("network",)).spec.triggers == new.spec.triggers
    assert known.with_default_triggers(()).spec.triggers == ()


@pytest.mark.parametrize(
    ("status", "spec"),
    [
        ({}, {"triggers": []}),
        ({"mode": "serve"}, {}),
        ({"phase": "Awake", "observedGeneration": 3}, {}),
        (reported("NoDefaultTriggers"), {}),
    ],
)
def test_no_object_that_was_there_before_begins_to_sleep(status, spec):
    es = without_triggers(status, **spec)
    assert es.with_default_triggers(("network",)) is es


def test_what_can_be_read_is_not_salvaged():
    found = codec_for(ElastiService).decode(yaml_as_json(KUBEELASTI))
    assert found.unreadable == ""
    assert problems_of(found) == []


def yaml_as_json(text: str) -> bytes:
    return msgspec.json.encode(yaml.safe_load(text))
