"""Values that tests of the operator begin with: a Service, an ElastiService, a target, facts."""

from __future__ import annotations

import dataclasses
import datetime as dt

from elasti.api.types import (
    ElastiService,
    ElastiServiceSpec,
    ScaleTargetRef,
)
from elasti.operator.model.facts import Facts
from elasti.operator.model.targets import UpdateObjInfo
from kubeloop.objects.core import (
    EndpointConditions,
    Service,
    ServiceEndpoint,
    ServicePort,
    ServiceSpec,
)
from kubeloop.objects.meta import ObjectMeta

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
