"""Problems of an ElastiService, or of what it names.

A *refusal* is a reason why this Service or target cannot sleep at all; it is in `Ready`. A
*warning* lets it sleep and says what may go wrong. Every message says what is wrong with which object
and what to do about it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping

from elasti.api.conditions import Reason
from elasti.api.names import DRAIN_KEY
from elasti.operator.model.targets import UpdateObjInfo
from kubeloop.objects.core import Service


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """Something wrong. `reason` is CamelCase for machines, `message` for people."""

    reason: str
    message: str
    refuses: bool = True


def warning(reason: str, message: str) -> Finding:
    """Return what lets the target sleep."""
    return Finding(reason, message, refuses=False)


_SERVICE_PROBLEMS = {
    Reason.EXTERNAL_NAME_SERVICE: "is of type ExternalName: it has no endpoints that could be switched;"
    " use a ClusterIP Service",
    Reason.HEADLESS_SERVICE: "is headless: clients connect to the pods' own port, which no resolver"
    " listens on; use a Service with a cluster IP",
    Reason.INTERNAL_TRAFFIC_POLICY_LOCAL: "has internalTrafficPolicy: Local, so nodes without a resolver"
    " would drop its traffic; set it to Cluster",
    Reason.EXTERNAL_TRAFFIC_POLICY_LOCAL: "has externalTrafficPolicy: Local, so nodes without a resolver"
    " would drop its traffic from outside; set it to Cluster",
    Reason.PUBLISH_NOT_READY_ADDRESSES: "has publishNotReadyAddresses: true, so traffic would reach pods"
    " that are not ready; remove it",
    Reason.NO_SELECTOR: "has no selector, so its pods cannot be found; give it one that matches the"
    " target's pods",
    Reason.NO_TCP_PORT: "has no TCP port to wake on",
}


def service_findings(service: Service) -> list[Finding]:
    """Return what is wrong with a public Service."""
    name, spec = service.metadata.name, service.spec
    is_external = spec.type == "ExternalName"
    wrong = {
        Reason.EXTERNAL_NAME_SERVICE: is_external,
        Reason.HEADLESS_SERVICE: spec.cluster_ip == "None" and not is_external,
        Reason.INTERNAL_TRAFFIC_POLICY_LOCAL: spec.internal_traffic_policy == "Local",
        Reason.EXTERNAL_TRAFFIC_POLICY_LOCAL: spec.external_traffic_policy == "Local",
        Reason.PUBLISH_NOT_READY_ADDRESSES: spec.publish_not_ready_addresses,
        Reason.NO_SELECTOR: not spec.selector and not is_external,
        Reason.NO_TCP_PORT: not service.tcp_ports,
    }
    found = [
        Finding(reason, f"Service {name} {_SERVICE_PROBLEMS[reason]}")
        for reason, is_wrong in wrong.items()
        if is_wrong
    ]
    if spec.session_affinity == "ClientIP":
        message = (
            f"Service {name} has sessionAffinity: ClientIP: before a park its clients stay with their"
            " pods, so the resolver does not see them; give it a trigger that does"
        )
        found.append(warning(Reason.SESSION_AFFINITY, message))
    others = [f"{port.port}/{port.protocol}" for port in spec.ports or () if port.protocol != "TCP"]
    if others and service.tcp_ports:
        message = f"{', '.join(others)} cannot be held while the target sleeps; its TCP ports can"
        found.append(warning(Reason.PORTS_IGNORED, f"Service {name}: {message}"))
    return found


ARGO_KEY = "rollouts-pod-template-hash"
# Controllers add these to pods, and some to a Service's selector: no template has them.
ADDED_LABELS = frozenset(
    {
        DRAIN_KEY,
        "pod-template-hash",
        ARGO_KEY,
        "controller-revision-hash",
        "statefulset.kubernetes.io/pod-name",
        "apps.kubernetes.io/pod-index",
    }
)


def lasting_selector(service: Service) -> dict[str, str]:
    """Return the part of a Service's selector that pod templates can match."""
    return {k: v for k, v in (service.spec.selector or {}).items() if k not in ADDED_LABELS}


def target_findings(service: Service, target: UpdateObjInfo, name: str) -> Iterator[Finding]:
    """Return why no traffic of a Service could reach the pods of a target of this name."""
    if target.pod is None or not service.spec.selector:
        return
    selector = lasting_selector(service)
    if not selector.items() <= target.pod_labels.items():
        yield Finding(
            Reason.SELECTS_OTHER_PODS,
            f"Service {service.metadata.name} selects {_pairs(selector)}, and the pods of {name} have"
            f" {_pairs(target.pod_labels)}: its traffic would wait for pods that it never reaches; correct"
            " the selector, or name the Service that selects them",
        )
        return
    named = [str(port.target) for port in service.tcp_ports if isinstance(port.target, str)]
    if named and len(named) == len(service.tcp_ports) and not target.port_names & {*named}:
        yield Finding(
            Reason.NO_SUCH_PORT,
            f"Service {service.metadata.name} leads to the port {' or '.join(sorted({*named}))}, and no"
            f" container of {name} has a port of that name; name one of the container's ports",
        )


def _pairs(labels: Mapping[str, str]) -> str:
    return ",".join(f"{key}={value}" for key, value in sorted(labels.items())) or "no labels"


def refusal(findings: Iterable[Finding]) -> Finding | None:
    """Return the first finding that keeps the target from sleeping."""
    return next((finding for finding in findings if finding.refuses), None)
