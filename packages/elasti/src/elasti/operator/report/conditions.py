"""What the operator says about an ElastiService: refusals, warnings, conditions. Pure.

A *refusal* is a reason why this Service or target cannot sleep at all; it is in `Ready`. A
*warning* lets it sleep and says what may go wrong. Every message says what is wrong with which object
and what to do about it.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Literal

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


def service_findings(service: Service) -> list[Finding]:
    """Return what is wrong with a public Service."""
    name, spec = service.metadata.name, service.spec
    found = []
    if spec.type == "ExternalName":
        found.append(
            Finding(
                Reason.EXTERNAL_NAME_SERVICE,
                f"Service {name} is of type ExternalName: it has no endpoints that could be switched;"
                " use a ClusterIP Service",
            )
        )
    elif spec.cluster_ip == "None":
        found.append(
            Finding(
                Reason.HEADLESS_SERVICE,
                f"Service {name} is headless: clients connect to the pods' own port, which no"
                " resolver listens on; use a Service with a cluster IP",
            )
        )
    if spec.internal_traffic_policy == "Local":
        found.append(
            Finding(
                Reason.INTERNAL_TRAFFIC_POLICY_LOCAL,
                f"Service {name} has internalTrafficPolicy: Local, so nodes without a resolver would"
                " drop its traffic; set it to Cluster",
            )
        )
    if spec.publish_not_ready_addresses:
        found.append(
            Finding(
                Reason.PUBLISH_NOT_READY_ADDRESSES,
                f"Service {name} has publishNotReadyAddresses: true, so traffic would reach pods"
                " that are not ready; remove it",
            )
        )
    return found + _port_and_selector_findings(service)


def _port_and_selector_findings(service: Service) -> list[Finding]:
    name, found = service.metadata.name, []
    if not service.spec.selector and service.spec.type != "ExternalName":
        found.append(
            Finding(
                Reason.NO_SELECTOR,
                f"Service {name} has no selector, so its pods cannot be found; give it one that"
                " matches the target's pods",
            )
        )
    others = [port for port in service.spec.ports or () if port.protocol != "TCP"]
    if not service.tcp_ports:
        found.append(Finding(Reason.NO_TCP_PORT, f"Service {name} has no TCP port to wake on"))
    elif others:
        listed = ", ".join(f"{port.port}/{port.protocol}" for port in others)
        found.append(
            Finding(
                Reason.PORTS_IGNORED,
                f"Service {name}: {listed} cannot be held while the target sleeps; its TCP ports can",
                refuses=False,
            )
        )
    return found


def refusal(findings: Iterable[Finding]) -> Finding | None:
    """Return the first finding that keeps the target from sleeping."""
    return next((finding for finding in findings if finding.refuses), None)


def condition(
    kind: str, *, holds: bool | None, reason: str, message: str = "", generation: int = 0
) -> StatusCondition:
    """Make a condition; its transition time is found by `merged`."""
    words: dict[bool | None, Literal["True", "False", "Unknown"]]
    words = {True: "True", False: "False", None: "Unknown"}
    return StatusCondition(
        type=kind,
        status=words[holds],
        reason=reason,
        message=message,
        observed_generation=generation,
    )


def merged(
    present: Sequence[StatusCondition], new: Iterable[StatusCondition], *, now: str
) -> tuple[StatusCondition, ...]:
    """Return new conditions, each with the time since when its status is what it is."""
    since = {(old.type, old.status): old.last_transition_time for old in present}
    return tuple(
        StatusCondition(
            type=entry.type,
            status=entry.status,
            reason=entry.reason,
            message=entry.message,
            last_transition_time=since.get((entry.type, entry.status)) or now,
            observed_generation=entry.observed_generation,
        )
        for entry in new
    )
