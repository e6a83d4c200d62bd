"""Decides for one Service which ElastiService should be there. Pure.

The operator acts on the decision, and `elasti enrolled` prints it. An ElastiService is removed only if its
labels say so; other mistakes leave it unchanged, since its own conditions report that.
"""

from __future__ import annotations

import dataclasses
import enum
import hashlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from elasti.api.crd import TEMPLATE_FIELDS, TEMPLATE_WAKE_FIELDS
from elasti.api.defaults import ENROLMENT_OBSERVE_FOR
from elasti.api.names import (
    API_VERSION,
    ENROLLED_FROM_ANNOTATION,
    ENROLLED_LABEL,
    KIND,
    SLEEP_LABEL,
    TEMPLATE_ANNOTATION,
    TEMPLATE_KIND,
)
from elasti.api.observed import policy_patch
from elasti.api.schedules import schedule_problems
from elasti.api.types import ElastiService, ElastiServiceSpec, is_object_name
from elasti.api.validation import problems
from elasti.operator.enrolment.finder import (
    Workload,
    WorkloadRef,
    is_private,
    leads_to,
    services_of,
    workloads_of,
)
from elasti.operator.model.findings import refusal, service_findings
from elasti.operator.model.targets import target_of, workers_of
from kubeloop.objects.core import Service
from kubeloop.objects.meta import JsonObject, PartialObjectMetadata
from kubeloop.objects.times import unix_seconds

OBSERVE, ENFORCE, NEVER = "observe", "enforce", "never"
DEFAULT_TEMPLATE = "default"
CLUSTER_SERVICE_LABEL = "kubernetes.io/cluster-service"
_CLUSTERS_OWN = ("kube-system", "kube-public", "kube-node-lease")


class Action(enum.Enum):
    """The next step for a Service."""

    IGNORE = "ignore"  #: no label concerns it
    LEAVE = "leave"  #: nothing is written, and there is a reason
    ENROL = "enrol"
    KEEP = "keep"  #: all of it was applied
    REMOVE = "remove"


class EnrolmentDecision(NamedTuple):
    """The step, and why. `body`: to apply; `recheck`: in so many seconds the answer may differ."""

    action: Action
    reason: str = ""
    message: str = ""
    existing: ElastiService | None = None
    template: str = ""
    workload: WorkloadRef | None = None
    body: JsonObject | None = None
    recheck: float | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """A namespace with all that a decision depends on; `now` in seconds since 1970."""

    namespace: PartialObjectMetadata
    services: Sequence[Service]
    workloads: Mapping[WorkloadRef, Workload]
    elastiservices: Sequence[ElastiService]
    templates: Mapping[str, JsonObject]
    own_namespace: str
    observe_for: float = ENROLMENT_OBSERVE_FOR
    now: float = 0.0


def decide(service: Service, around: Surroundings) -> EnrolmentDecision:
    """Return what to do about a Service."""
    mine = enrolled(service, around.elastiservices)
    ending = service.metadata.deletion_timestamp or around.namespace.metadata.deletion_timestamp
    own, inherited = (_label(one.metadata.labels) for one in (service, around.namespace))
    if is_private(service) or ending or not (own or inherited or mine):
        return EnrolmentDecision(Action.IGNORE)
    others = [es for es in around.elastiservices if es is not mine]
    end = Action.REMOVE if mine is not None else Action.LEAVE
    if unwanted := _unwanted(own, inherited) or _written(service, others):
        return EnrolmentDecision(end, *unwanted, mine)
    found = _obstacle(service, around, others) or _workload(service, around, others, own=own)
    if isinstance(found, EnrolmentDecision):
        ends = end if found.reason == "NeverBeside" else Action.LEAVE
        return found._replace(action=ends, existing=mine)
    if mine is None and around.workloads[found].spec.replicas == 0:
        message = f"{found} has zero replicas, which Elasti did not set; scale it up first"
        return _leave("AtZero", message)
    enforce = (own or inherited) == ENFORCE
    return _enrolment(service, around, mine, found, enforce=enforce, own=bool(own))


def _unwanted(own: str, inherited: str) -> tuple[str, str] | None:
    """Return why no label asks for an ElastiService."""
    asked, place = own or inherited, "Service" if own else "namespace"
    if not asked:
        return "LabelRemoved", f"label {SLEEP_LABEL} was removed"
    if NEVER in (own, inherited):
        place = "Service" if own == NEVER else "namespace"
        return "Never", f"the {place}'s label says {NEVER}"
    if asked not in (OBSERVE, ENFORCE):
        right = f"write {OBSERVE}, {ENFORCE} or {NEVER}"
        return "UnknownLabel", f"label {SLEEP_LABEL} of the {place} is {asked!r}; {right}"
    return None


def _written(service: Service, others: Sequence[ElastiService]) -> tuple[str, str] | None:
    """Return that a person wrote an ElastiService for it."""
    for es in others:
        if es.spec.service == service.metadata.name:
            return (
                "HandWritten",
                f"ElastiService {es.metadata.name} was written for it and takes precedence",
            )
    return None


def enrolled(service: Service, elastiservices: Sequence[ElastiService]) -> ElastiService | None:
    """Return the ElastiService that enrolment made for a Service."""
    for es in elastiservices:
        owners = es.metadata.owner_references or ()
        is_owner = any(owner.uid == service.metadata.uid for owner in owners)
        if is_owner and ENROLLED_LABEL in (es.metadata.labels or {}):
            return es
    return None


def _label(labels: Mapping[str, str] | None) -> str:
    return (labels or {}).get(SLEEP_LABEL, "")


def _leave(reason: str, message: str) -> EnrolmentDecision:
    return EnrolmentDecision(Action.LEAVE, reason, message)


def _obstacle(
    service: Service, around: Surroundings, others: Sequence[ElastiService]
) -> EnrolmentDecision | None:
    """Return what is wrong with the Service itself."""
    name, namespace = service.metadata.name, service.metadata.namespace
    if namespace in (*_CLUSTERS_OWN, around.own_namespace):
        return _leave("SystemNamespace", f"nothing in namespace {namespace} is enrolled")
    if CLUSTER_SERVICE_LABEL in (service.metadata.labels or {}):
        return _leave("ClusterService", "it is one of the cluster's own services")
    if name in [es.metadata.name for es in others]:
        there = f"ElastiService {name} exists for another Service"
        return _leave("NameTaken", f"{there}; rename it, or write one for this Service")
    if (finding := refusal(service_findings(service))) is not None:
        return _leave(finding.reason, finding.message)
    return None


def _workload(
    service: Service, around: Surroundings, others: Sequence[ElastiService], *, own: str
) -> WorkloadRef | EnrolmentDecision:
    """Return the one workload behind a Service, or why there is no such one."""
    found = workloads_of(service, around.workloads)
    if not found:
        message = "its selector matches the pods of no Deployment and no StatefulSet"
        return _leave("NoWorkload", message)
    if len(found) > 1:
        names = ", ".join(map(str, sorted(found)))
        return _leave("SeveralWorkloads", f"its selector matches the pods of several: {names}")
    (workload,) = found
    for es in others:
        taken = [target_of(es), *workers_of(es)]
        if workload in [(one.kind, one.name) for one in taken]:
            message = f"{workload} belongs to ElastiService {es.metadata.name}"
            return _leave("WorkloadTaken", message)
    labels = around.workloads[workload].pod_labels
    beside = {
        one.metadata.name: _label(one.metadata.labels)
        for one in around.services
        if one.metadata.name != service.metadata.name and leads_to(one, labels)
    }
    if never := [name for name, label in beside.items() if label == NEVER]:
        message = f"Service {never[0]} leads to {workload} too, and its label says never"
        return _leave("NeverBeside", message)
    usable = services_of(labels, around.services)
    may = sorted(name for name in beside if usable[name] is None)
    if rivals := [name for name in may if beside[name] or not own]:
        message = f"Service {', '.join(rivals)} leads to {workload} too; label only the one whose traffic wakes it"
        return _leave("SeveralServices", message)
    return workload


def _enrolment(
    service: Service,
    around: Surroundings,
    mine: ElastiService | None,
    workload: WorkloadRef,
    *,
    enforce: bool,
    own: bool,
) -> EnrolmentDecision:
    template = template_name(service, around.namespace)
    if (problem := _template_problem(template, around.templates)) is not None:
        reason, message = problem
        kept = "; its ElastiService stays unchanged" if mine is not None else ""
        return EnrolmentDecision(Action.LEAVE, reason, message + kept, mine, template)
    left = 0.0
    if enforce and not own and not (mine is not None and mine.spec.policy == "Enforce"):
        left = around.observe_for - _observed(mine, around.now)
    observe = left > 0 or not enforce
    body = _body(service, template, around.templates[template], workload, observe=observe)
    place, word = "Service" if own else "namespace", ENFORCE if enforce else OBSERVE
    why = f"the {place}'s label says {word}"
    told = EnrolmentDecision(Action.ENROL, "Enrolled", why, mine, template, workload, body)
    if left > 0:
        hours = f"{around.observe_for / 3600:g} h"
        told = told._replace(message=f"{why}, after {hours} of observation", recheck=left)
    if mine is None:
        return told
    meta, applied = mine.metadata, body["metadata"]["annotations"][ENROLLED_FROM_ANNOTATION]
    if meta.deletion_timestamp or (meta.annotations or {}).get(ENROLLED_FROM_ANNOTATION) == applied:
        return told._replace(action=Action.KEEP)
    target = target_of(mine)
    if (target.kind, target.name) != workload:
        message = f"the Service leads to {workload} now; its ElastiService is recreated"
        return told._replace(action=Action.REMOVE, reason="WorkloadChanged", message=message)
    return told


def _observed(mine: ElastiService | None, now: float) -> float:
    """Return for how many seconds it has been observed."""
    observed = mine.status.observed if mine is not None else None
    return now - unix_seconds(observed.since) if observed is not None and observed.since else 0.0


def template_name(service: Service, namespace: PartialObjectMetadata) -> str:
    """Return the template that a Service asks for."""
    given = ((one.metadata.annotations or {}) for one in (service, namespace))
    named = (annotations.get(TEMPLATE_ANNOTATION, "") for annotations in given)
    return next(filter(None, named), DEFAULT_TEMPLATE)


def _template_problem(name: str, templates: Mapping[str, JsonObject]) -> tuple[str, str] | None:
    if not is_object_name(name):
        message = f"annotation {TEMPLATE_ANNOTATION} is {name!r}; name one {TEMPLATE_KIND}"
        return "TemplateName", message
    if name not in templates:
        message = (
            f"there is no {TEMPLATE_KIND} {name}; an administrator creates it, or name another"
            f" in annotation {TEMPLATE_ANNOTATION}"
        )
        return "TemplateMissing", message
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "x"}
    spec = template_spec(templates[name]) | {"service": "x", "scaleTargetRef": target}
    try:
        read = msgspec.convert(spec, ElastiServiceSpec)
        # A schedule that cannot be read would wake the whole fleet, and keep it awake.
        wrong = [*map(str, problems(read)), *schedule_problems(read.schedules)]
    except msgspec.ValidationError as error:
        wrong = [str(error)]
    return ("TemplateInvalid", f"{TEMPLATE_KIND} {name}: {wrong[0]}") if wrong else None


def template_spec(template: JsonObject) -> JsonObject:
    """Return what a template sets of a spec, and nothing that it may not set."""
    given = template.get("spec") or {}
    spec = {name: given[name] for name in TEMPLATE_FIELDS if name in given}
    given_wake = given.get("wake") or {}
    wake = {name: given_wake[name] for name in TEMPLATE_WAKE_FIELDS if name in given_wake}
    return spec | ({"wake": wake} if wake else {})


def _body(
    service: Service, template: str, content: JsonObject, workload: WorkloadRef, *, observe: bool
) -> JsonObject:
    meta = service.metadata
    spec: JsonObject = {
        **template_spec(content),
        "service": meta.name,
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": workload.kind, "name": workload.name},
        **policy_patch(observe=observe)["spec"],
    }
    encoded = msgspec.json.encode(spec, order="deterministic")
    digest = hashlib.sha256(encoded).hexdigest()[:12]
    owner = {"apiVersion": "v1", "kind": "Service", "name": meta.name, "uid": meta.uid}
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {
            "name": meta.name,
            "namespace": meta.namespace,
            "labels": {ENROLLED_LABEL: "true"},
            "annotations": {ENROLLED_FROM_ANNOTATION: f"{template}/{digest}"},
            "ownerReferences": [owner],
        },
        "spec": spec,
    }
