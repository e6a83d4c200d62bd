"""What of the cluster's network may be in the way: policies, and who implements Services. Pure.

Policies are judged by what they plainly say; a plug-in with policies of its own is not seen here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from elasti.cli.doctor.findings import DoctorFinding, FindingLevel

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from kubeloop.objects.meta import JsonObject

_NAME_LABEL = "kubernetes.io/metadata.name"


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
            if selects((policy.get("spec") or {}).get("podSelector"), labels):
                yield DoctorFinding(
                    FindingLevel.WARNING,
                    f"NetworkPolicy {namespace}/{policy['metadata']['name']}",
                    f"it selects the pods of {name} and lets nobody in from namespace {elasti[0]}:"
                    " the resolver could not reach them, unless another policy lets it in",
                    "Allow ingress from\n"
                    f"  namespaceSelector: {{matchLabels: {{{_NAME_LABEL}: {elasti[0]}}}}}",
                )


def judge_proxies(daemonsets: Iterable[JsonObject]) -> DoctorFinding:
    """Say who implements Services, by the DaemonSets of kube-system."""
    names = {item["metadata"]["name"] for item in daemonsets}
    if "kube-proxy" in names:
        return DoctorFinding(FindingLevel.OK, "Services", "implemented by kube-proxy")
    if "cilium" in names:
        return DoctorFinding(
            FindingLevel.HINT,
            "Services",
            "implemented by Cilium in place of kube-proxy: it follows EndpointSlices of ours too; with"
            " socket load balancing, open connections of clients outlive a switch, as with any"
            " endpoint that goes",
        )
    return DoctorFinding(
        FindingLevel.HINT,
        "Services",
        "neither kube-proxy nor Cilium was found in kube-system: whoever implements Services must send"
        " to the ready endpoints of all EndpointSlices of a Service, each with its own ports",
    )


def selects(selector: JsonObject | None, labels: Mapping[str, str]) -> bool:
    """Whether a label selector matches; an empty one matches everything."""
    selector = selector or {}
    if any(labels.get(k) != v for k, v in (selector.get("matchLabels") or {}).items()):
        return False
    return all(_matches(e, labels) for e in selector.get("matchExpressions") or ())


def _matches(expression: JsonObject, labels: Mapping[str, str]) -> bool:
    key, values = expression["key"], expression.get("values") or ()
    match expression["operator"]:
        case "In":
            return labels.get(key) in values
        case "NotIn":
            return labels.get(key) not in values
        case "Exists":
            return key in labels
        case _:
            return key not in labels


def _admits(policy: JsonObject, namespace: str, elasti: tuple[str, Mapping[str, str]]) -> bool:
    """Whether a policy says nothing about ingress, or lets pods of Elasti's namespace in."""
    spec = policy.get("spec") or {}
    if "Ingress" not in (spec.get("policyTypes") or ["Ingress"]):
        return True
    name, labels = elasti
    for rule in spec.get("ingress") or ():
        peers = rule.get("from")
        if not peers:
            return True
        for peer in peers:
            if "ipBlock" in peer:
                return True  # it may well be the pods' network; not known here
            if "namespaceSelector" in peer:
                if selects(peer["namespaceSelector"], {_NAME_LABEL: name, **labels}):
                    return True
            elif namespace == name:
                return True
    return False
