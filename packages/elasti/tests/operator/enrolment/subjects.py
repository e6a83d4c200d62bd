"""Services, workloads and ElastiServices for decisions about enrolment."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec

from elasti.api.names import SLEEP_LABEL, TEMPLATE_ANNOTATION
from elasti.api.types import ElastiService
from elasti.operator.enrolment.decide import EnrolmentDecision, Surroundings, decide
from elasti.operator.enrolment.finder import Workload, WorkloadRef
from kubeloop.objects.core import Service
from kubeloop.objects.meta import JsonObject, PartialObjectMetadata

WEB = WorkloadRef("Deployment", "web")
DB = WorkloadRef("StatefulSet", "db")
NOW = 1_800_000_000.0
SINCE = "2027-01-15T08:00:00Z"
"""The same time, as objects have it."""


def service(
    name: str = "web", sleep: str = "", template: str = "", *, app: str = "web", **spec: Any
) -> Service:
    metadata = {
        "name": name,
        "namespace": "shop",
        "uid": f"uid-{name}",
        "labels": {SLEEP_LABEL: sleep} if sleep else {},
        "annotations": {TEMPLATE_ANNOTATION: template} if template else {},
    }
    content = {"clusterIP": "10.0.0.1", "selector": {"app": app}, "ports": [{"port": 80}], **spec}
    return msgspec.convert({"metadata": metadata, "spec": content}, Service)


def workload(app: str = "web", replicas: int = 2) -> Workload:
    spec = {"replicas": replicas, "template": {"metadata": {"labels": {"app": app, "v": "1"}}}}
    return msgspec.convert({"metadata": {"name": app}, "spec": spec}, Workload)


def namespace(sleep: str = "", template: str = "", **metadata: Any) -> PartialObjectMetadata:
    content = {
        "name": "shop",
        "labels": {SLEEP_LABEL: sleep} if sleep else {},
        "annotations": {TEMPLATE_ANNOTATION: template} if template else {},
        **metadata,
    }
    return msgspec.convert({"metadata": content}, PartialObjectMetadata)


def around(*services: Service, **changes: Any) -> Surroundings:
    made = Surroundings(
        namespace=namespace(),
        services=services,
        workloads={WEB: workload(), DB: workload("db")},
        elastiservices=(),
        templates={"default": {"spec": {"cooldownPeriod": 60}}, "slow": {"spec": {}}},
        own_namespace="elasti",
        now=NOW,
    )
    return dataclasses.replace(made, **changes)


def decided(one: Service, *others: Service, **changes: Any) -> EnrolmentDecision:
    return decide(one, around(one, *others, **changes))


def body(found: EnrolmentDecision) -> JsonObject:
    assert found.body is not None
    return found.body


def existing(one: Service, observed: str = "", **changes: Any) -> ElastiService:
    """The ElastiService that enrolment would have made."""
    content = body(decided(one, **changes))
    if observed:
        content |= {"status": {"observed": {"since": observed}}}
    return msgspec.convert(content, ElastiService)


def written(name: str, of: str, target: WorkloadRef = WEB, **metadata: Any) -> ElastiService:
    ref = {"apiVersion": "apps/v1", "kind": target.kind, "name": target.name}
    meta = {"name": name, "namespace": "shop", **metadata}
    return msgspec.convert(
        {"metadata": meta, "spec": {"service": of, "scaleTargetRef": ref}}, ElastiService
    )
