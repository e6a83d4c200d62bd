"""What the operator says about an ElastiService: refusals, warnings, conditions. Pure.

A *refusal* is a reason why this Service or target cannot sleep at all; it is in `Ready`. A
*warning* lets it sleep and says what may go wrong. Every message says what is wrong with which object
and what to do about it.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Literal

import msgspec

from elasti.api.conditions import Reason
from elasti.api.types import StatusCondition

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kubeloop.objects.core import Service


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """Something wrong. `reason` is CamelCase for machines, `message` for people."""

    reason: str
    message: str
    refuses: bool = True


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
        found.append(Finding(Reason.SESSION_AFFINITY, message, refuses=False))
    others = [f"{port.port}/{port.protocol}" for port in spec.ports or () if port.protocol != "TCP"]
    if others and service.tcp_ports:
        message = f"{', '.join(others)} cannot be held while the target sleeps; its TCP ports can"
        found.append(Finding(Reason.PORTS_IGNORED, f"Service {name}: {message}", refuses=False))
    return found


def refusal(findings: Iterable[Finding]) -> Finding | None:
    """Return the first finding that keeps the target from sleeping."""
    return next((finding for finding in findings if finding.refuses), None)


def condition(kind: str, *, holds: bool | None, reason: str, message: str = "") -> StatusCondition:
    """Make a condition; its transition time is found by `merged`."""
    words: dict[bool | None, Literal["True", "False", "Unknown"]]
    words = {True: "True", False: "False", None: "Unknown"}
    return StatusCondition(type=kind, status=words[holds], reason=reason, message=message)


def merged(
    present: Sequence[StatusCondition], new: Iterable[StatusCondition], *, now: str
) -> tuple[StatusCondition, ...]:
    """Return new conditions, each with the time since when its status is what it is."""
    since = {(old.type, old.status): old.last_transition_time for old in present}
    return tuple(
        msgspec.structs.replace(
            entry, last_transition_time=since.get((entry.type, entry.status)) or now
        )
        for entry in new
    )
