"""Problems of ElastiServices, their Services, autoscalers and network policies. Pure.

If an operator has reconciled an ElastiService, its conditions count. Otherwise the same rules are applied here.
Only NetworkPolicies are judged, not the policies of a network plug-in.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

from elasti.api import conditions as words
from elasti.api.defaults import FIRST_RESOLVER_PORT, LAST_RESOLVER_PORT
from elasti.api.names import DRAIN_KEY, KIND, RESOLVER
from elasti.api.validation import problems
from elasti.api.view import condition
from elasti.cli.doctor.findings import DoctorFinding, FindingLevel, hint, ok, warning
from elasti.operator.model.findings import service_findings
from kubeloop.objects.core import Service
from kubeloop.objects.selectors import LabelSelector

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from elasti.api.types import ElastiService, StatusCondition
    from elasti.operator.autoscalers.base import Autoscaler
    from kubeloop.objects.meta import JsonObject

TOPIC = KIND
_NAME_LABEL = "kubernetes.io/metadata.name"
# Conditions beside Ready, with the status that is bad, and how bad it is.
_BAD = (
    (words.TRIGGERS_HEALTHY, "False", FindingLevel.WARNING),
    (words.SCALE_CONTESTED, "True", FindingLevel.WARNING),
    (words.DOZE_STUCK, "True", FindingLevel.WARNING),
    (words.TRAFFIC_PATH, "False", FindingLevel.WARNING),
    (words.TRAFFIC_PATH, "Unknown", FindingLevel.HINT),
)


def judge_services(
    found: Sequence[ElastiService], services: Mapping[tuple[str, str], JsonObject] | None
) -> Iterator[DoctorFinding]:
    """Judge every ElastiService; `services` are all Services by namespace and name, None if unknown."""
    good = 0
    named = {(es.metadata.namespace, es.spec.service) for es in found}
    for place, service in (services or {}).items():
        if place not in named and DRAIN_KEY in ((service.get("spec") or {}).get("selector") or {}):
            yield DoctorFinding(
                FindingLevel.PROBLEM,
                f"Service {'/'.join(place)}",
                f"its selector has the key {DRAIN_KEY}, so that no pod is in its rotation, and no"
                " ElastiService names it",
                f"kubectl patch service {place[1]} -n {place[0]} --type=merge -p"
                f' \'{{"spec":{{"selector":{{"{DRAIN_KEY}":null}}}}}}\'',
            )
    for es in found:
        complaints = list(_judge(es, services))
        good += all(complaint.level is FindingLevel.HINT for complaint in complaints)
        yield from complaints
    if good:
        every = "" if good == len(found) else f" of {len(found)}"
        yield ok("ElastiServices", f"{good}{every} without problems")
    elif not found:
        yield ok("ElastiServices", "no ElastiServices yet")


def judge_autoscalers(
    found: Iterable[ElastiService], autoscalers: Mapping[type[Autoscaler], Iterable[JsonObject]]
) -> Iterator[DoctorFinding]:
    """Judge the autoscalers of each kind that scale targets."""
    by_target = {target_of(es): es for es in found}
    for kind, objects in autoscalers.items():
        for obj in objects:
            if (es := by_target.get(_scaled_by(obj))) is None:
                continue
            ref = es.spec.autoscaler
            name = obj["metadata"]["name"]
            named = ref is not None and (ref.type, ref.name) == (kind.type, name)
            if (conflict := kind.conflict(obj, named=named)) is not None:
                level = FindingLevel.PROBLEM if conflict.surely else FindingLevel.WARNING
                yield _finding(level, es, conflict.message, conflict.remedy)


def _judge(
    es: ElastiService, services: Mapping[tuple[str, str], JsonObject] | None
) -> Iterator[DoctorFinding]:
    ready = condition(es, words.READY)
    if ready is None:
        yield _finding(
            FindingLevel.PROBLEM,
            es,
            "no operator has reconciled it",
            "See the findings about operator and leader; does it watch this namespace"
            " (WATCH_NAMESPACES)?",
        )
        yield from _judge_unseen(es, services)
        return
    if ready.status == "False":
        yield _finding(FindingLevel.PROBLEM, es, f"{ready.reason}: {ready.message}")
    elif ready.message:
        yield _finding(FindingLevel.HINT, es, ready.message)
    if es.status.observed_generation < es.metadata.generation:
        yield _finding(
            FindingLevel.WARNING,
            es,
            "the operator has not yet observed the last change of its spec",
        )
    for kind, status, level in _BAD:
        entry = condition(es, kind)
        if entry is not None and entry.status == status and not _repeats(entry, ready):
            yield _finding(level, es, f"{entry.reason}: {entry.message}")


def _repeats(entry: StatusCondition, ready: StatusCondition) -> bool:
    """Whether all that a condition says about triggers is in Ready's message, too."""
    parts = re.split(r"(?:; |^)triggers\[[0-9]+\]: ", entry.message)
    return len(parts) > 1 and all(part in ready.message for part in parts)


def _judge_unseen(
    es: ElastiService, services: Mapping[tuple[str, str], JsonObject] | None
) -> Iterator[DoctorFinding]:
    for problem in problems(es.spec):
        yield _finding(FindingLevel.PROBLEM, es, str(problem))
    if services is None:
        return
    obj = services.get((es.metadata.namespace, es.spec.service))
    if obj is None:
        yield _finding(FindingLevel.PROBLEM, es, f"there is no Service {es.spec.service}")
        return
    for finding in service_findings(msgspec.convert(obj, Service)):
        yield _finding(
            FindingLevel.PROBLEM if finding.refuses else FindingLevel.HINT, es, finding.message
        )


def _finding(
    level: FindingLevel, es: ElastiService, message: str, remedy: str = ""
) -> DoctorFinding:
    return DoctorFinding(
        level, f"{TOPIC} {es.metadata.namespace}/{es.metadata.name}", message, remedy
    )


def target_of(es: ElastiService) -> tuple[str, str, str]:
    """Return the namespace, kind and name of a target, the kind in lower case and singular."""
    ref = es.spec.scale_target_ref
    kind = ref.kind.lower().removesuffix("s")
    return es.metadata.namespace, kind, ref.name


def _scaled_by(obj: JsonObject) -> tuple[str, str, str]:
    ref = (obj.get("spec") or {}).get("scaleTargetRef") or {}
    kind = ref.get("kind", "Deployment").lower()
    return obj["metadata"]["namespace"], kind, ref.get("name", "")


def judge_policies(
    policies: Iterable[JsonObject],
    targets: Mapping[str, Iterable[tuple[str, Mapping[str, str]]]],
    elasti: tuple[str, Mapping[str, str]],
) -> Iterator[DoctorFinding]:
    """Judge policies that keep the resolver from a target's pods.

    `targets`: by namespace, each target's name and the labels of its pods. `elasti`: the namespace of
    the resolver, with its labels.
    """
    for policy in policies:
        namespace = policy["metadata"]["namespace"]
        if _admits(policy, namespace, elasti):
            continue
        for name, labels in targets.get(namespace, ()):
            if _matches((policy.get("spec") or {}).get("podSelector"), labels):
                yield warning(
                    f"NetworkPolicy {namespace}/{policy['metadata']['name']}",
                    f"it selects the pods of {name} and lets no pod in from namespace {elasti[0]}:"
                    " the resolver could not reach them, unless another policy lets it in",
                    "Allow ingress from\n"
                    f"  namespaceSelector: {{matchLabels: {{{_NAME_LABEL}: {elasti[0]}}}}}",
                )


def judge_proxies(daemonsets: Iterable[JsonObject]) -> DoctorFinding:
    """Judge the implementation of Services by the DaemonSets of kube-system."""
    names = {item["metadata"]["name"] for item in daemonsets}
    if "kube-proxy" in names:
        return ok("Services", "implemented by kube-proxy")
    if "cilium" in names:
        return hint(
            "Services",
            "implemented by Cilium in place of kube-proxy: it follows EndpointSlices of ours too; with"
            " socket load balancing, open connections of clients outlive a switch, as with any"
            " endpoint that goes",
        )
    return hint(
        "Services",
        "neither kube-proxy nor Cilium was found in kube-system: what implements Services must send"
        " to the ready endpoints of all EndpointSlices of a Service, each with its own ports",
    )


def judge_egress(
    policies: Iterable[JsonObject], service: Service, elasti: tuple[str, Mapping[str, str]]
) -> Iterator[DoctorFinding]:
    """Judge policies that let their pods call those of a Service, and not the resolver in their place."""
    namespace, selected = service.metadata.namespace, service.spec.selector or {}
    for policy in policies:
        rules = (policy.get("spec") or {}).get("egress") or ()
        # A rule without ports, or with a port without a number, is for all; the resolver's are a range.
        wide = [
            rule
            for rule in rules
            if not rule.get("ports")
            or any("endPort" in p or "port" not in p for p in rule["ports"])
        ]
        if not _admit(rules, "to", namespace, (namespace, {}), selected):
            continue
        if not _admit(wide, "to", namespace, elasti, {"app": RESOLVER}):
            yield warning(
                f"NetworkPolicy {namespace}/{policy['metadata']['name']}",
                f"its pods may call those of Service {service.metadata.name}, but not the resolver in namespace"
                f" {elasti[0]}: they are refused while the target sleeps, unless another policy allows it",
                f"Allow egress to the resolver's ports, by default {FIRST_RESOLVER_PORT}-{LAST_RESOLVER_PORT} (port and endPort), of\n"
                f"  namespaceSelector: {{matchLabels: {{{_NAME_LABEL}: {elasti[0]}}}}}",
            )


def _admits(policy: JsonObject, namespace: str, elasti: tuple[str, Mapping[str, str]]) -> bool:
    """Whether a policy says nothing about ingress, or lets pods of Elasti's namespace in."""
    spec = policy.get("spec") or {}
    if "Ingress" not in (spec.get("policyTypes") or ["Ingress"]):
        return True
    return _admit(spec.get("ingress") or (), "from", namespace, elasti)


def _admit(
    rules: Iterable[JsonObject],
    way: str,
    namespace: str,
    other: tuple[str, Mapping[str, str]],
    pods: Mapping[str, str] | None = None,
) -> bool:
    """Whether a rule of a namespace admits another namespace, with its labels; `pods`: its pods with these labels."""
    name, labels = other
    for rule in rules:
        peers = rule.get(way)
        if not peers:
            return True
        for peer in peers:
            if "ipBlock" in peer:
                return True  # it may well be the pods' network; not known here
            if pods is not None and not _matches(peer.get("podSelector"), pods):
                continue
            if "namespaceSelector" in peer:
                if _matches(peer["namespaceSelector"], {_NAME_LABEL: name, **labels}):
                    return True
            elif namespace == name:
                return True
    return False


def _matches(selector: JsonObject | None, labels: Mapping[str, str]) -> bool:
    """Whether a selector matches; a policy without one selects everything."""
    return LabelSelector.from_json(selector or {}).matches(labels)
