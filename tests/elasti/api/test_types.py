from __future__ import annotations

import re

import msgspec
import pytest
import yaml

from elasti.api.types import ElastiService

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
        ("triggers: [{type: kafka}]", "triggers[0].type"),
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
