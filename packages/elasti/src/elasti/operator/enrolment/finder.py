"""Finds what belongs together: a workload's Services, a Service's workloads, a workload's autoscaler.

`elasti enable` begins with a workload, enrolment with a Service; both use these rules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from elasti.api.names import PRIVATE_LABEL
from elasti.api.types import AUTOSCALER_KINDS
from elasti.operator.model.findings import Finding, lasting_selector, refusal, service_findings
from kubeloop.client import Client
from kubeloop.client.errors import Forbidden, NotFound
from kubeloop.objects.core import Service
from kubeloop.objects.meta import JsonObject, LabeledMeta

KINDS = ("Deployment", "StatefulSet")


class WorkloadRef(NamedTuple):
    """A workload that may sleep, in a namespace that is known."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind.lower()}/{self.name}"

    @property
    def resource(self) -> str:
        """Its resource."""
        return workload_resource(self.kind)


def workload_resource(kind: str) -> str:
    """Return the resource of a kind of workloads."""
    return f"apps/v1/{kind.lower()}s"


class PodTemplate(msgspec.Struct, frozen=True, gc=False):
    """The labels of a workload's pods."""

    metadata: LabeledMeta = msgspec.field(default_factory=LabeledMeta)


class WorkloadSpec(msgspec.Struct, frozen=True, gc=False):
    """The part of a workload that enrolment depends on."""

    template: PodTemplate = PodTemplate()
    replicas: int = 1


class Workload(msgspec.Struct, frozen=True, gc=False):
    """A Deployment or a StatefulSet."""

    metadata: LabeledMeta = msgspec.field(default_factory=LabeledMeta)
    spec: WorkloadSpec = WorkloadSpec()

    @property
    def pod_labels(self) -> dict[str, str]:
        """The labels of its pods."""
        return self.spec.template.metadata.labels or {}


def is_private(service: Service) -> bool:
    """Whether the operator made a Service for itself."""
    return PRIVATE_LABEL in (service.metadata.labels or {})


def leads_to(service: Service, labels: Mapping[str, str]) -> bool:
    """Whether a public Service's traffic goes to pods with these labels."""
    selector = lasting_selector(service)
    return bool(selector) and not is_private(service) and selector.items() <= labels.items()


def services_of(
    labels: Mapping[str, str], services: Iterable[Service]
) -> dict[str, Finding | None]:
    """Return the public Services that lead to pods, each with why it cannot be used."""
    return {
        service.metadata.name: refusal(service_findings(service))
        for service in services
        if leads_to(service, labels)
    }


def workloads_of(
    service: Service, workloads: Mapping[WorkloadRef, Workload]
) -> Sequence[WorkloadRef]:
    """Return the workloads whose pods a Service leads to."""
    return [ref for ref, found in workloads.items() if leads_to(service, found.pod_labels)]


async def autoscalers_in(
    client: Client, namespace: str, forbidden: Callable[[str], None]
) -> dict[WorkloadRef, JsonObject]:
    """Return the autoscalers of a namespace by their workload, in the form of the spec.

    Calls `forbidden` with a resource that may not be listed. Raises KubeError.
    """
    found: dict[WorkloadRef, JsonObject] = {}
    kinds = {kind.kind for kind in AUTOSCALER_KINDS.values()}
    for kind, (_, resource, _) in AUTOSCALER_KINDS.items():
        try:
            items = [item async for item in client.resource(resource).items(namespace=namespace)]
        except NotFound:
            continue  # not installed
        except Forbidden:
            forbidden(resource)
            continue
        for item in items:
            ref = item["spec"].get("scaleTargetRef") or {}
            # KEDA manages its own HPA.
            owners = item["metadata"].get("ownerReferences") or ()
            if not any(owner.get("kind") in kinds for owner in owners):
                workload = WorkloadRef(ref.get("kind", "Deployment"), ref.get("name", ""))
                found.setdefault(workload, {"type": kind, "name": item["metadata"]["name"]})
    return found
