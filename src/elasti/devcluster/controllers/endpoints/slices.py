"""From the endpoints that should be to changes of the slices that are. Pure.

Endpoints stay in the slice where they are. New ones go first into slices that change anyway, then
into one that takes them all, then into new slices of at most a hundred. A slice that would go and
one that would come become a change of the former. There is always one slice for each family, empty
if need be, so that "nothing yet" can be told from "not looked at yet".
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from elasti.devcluster.controllers.endpoints.desired import families_of, grouped
from elasti.devcluster.controllers.endpoints.objects import HEADLESS, MANAGED_BY, SERVICE_NAME

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from elasti.devcluster.controllers.endpoints.desired import NodeLabels, Ports
    from elasti.devcluster.controllers.endpoints.objects import (
        Endpoint,
        EndpointSlice,
        Service,
    )
    from elasti.devcluster.controllers.pods import Pod

CONTROLLER = "endpointslice-controller.k8s.io"
MOST = 100
_RESERVED = (SERVICE_NAME, MANAGED_BY, HEADLESS)


@dataclasses.dataclass(slots=True, kw_only=True)
class SliceDraft:
    """A slice as it should be; `present` is the one to change, None for one to create."""

    family: str
    ports: Ports
    endpoints: list[Endpoint]
    present: EndpointSlice | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SlicePlan:
    """What to write."""

    create: tuple[SliceDraft, ...] = ()
    update: tuple[SliceDraft, ...] = ()
    delete: tuple[EndpointSlice, ...] = ()


def labels_for(service: Service) -> dict[str, str]:
    """Return a slice's labels: the Service's own and the three that say what it is."""
    own = service.metadata.labels or {}
    labels = {name: text for name, text in own.items() if name not in _RESERVED}
    if service.is_headless:
        labels[HEADLESS] = ""
    return {**labels, SERVICE_NAME: service.metadata.name, MANAGED_BY: CONTROLLER}


def plan_slices(
    service: Service,
    pods: Collection[Pod],
    existing: Sequence[EndpointSlice],
    nodes: NodeLabels,
) -> SlicePlan:
    """Compare. `existing` are this controller's slices of the Service; `nodes` those that exist."""
    families = families_of(service)
    create: list[SliceDraft] = []
    update: list[SliceDraft] = []
    delete = [item for item in existing if not _is_usable(item, service, families)]
    for family in families:
        present = [
            item
            for item in existing
            if item.address_type == family and _is_usable(item, service, families)
        ]
        wanted = grouped(service, pods, family, nodes)
        part = _plan_family(service, family, wanted, present)
        create += part.create
        update += part.update
        delete += part.delete
    return SlicePlan(create=tuple(create), update=tuple(update), delete=tuple(delete))


def _is_usable(item: EndpointSlice, service: Service, families: Collection[str]) -> bool:
    owners = item.metadata.owner_references or ()
    owned = any(owner.uid == service.metadata.uid for owner in owners)
    return owned and item.address_type in families


def _plan_family(
    service: Service,
    family: str,
    wanted: dict[Ports, list[Endpoint]],
    present: Sequence[EndpointSlice],
) -> SlicePlan:
    spare: list[EndpointSlice] = []
    drafts: list[SliceDraft] = []
    by_ports: dict[Ports, list[EndpointSlice]] = {}
    for item in present:
        by_ports.setdefault(item.ports or (), []).append(item)
    for ports, slices in by_ports.items():
        if ports not in wanted:
            spare += slices
    for ports, endpoints in wanted.items():
        packed = pack(family, ports, endpoints, by_ports.get(ports, ()))
        spare += [d.present for d in packed if not d.endpoints and d.present is not None]
        drafts += [draft for draft in packed if draft.endpoints]
    if not drafts:
        drafts = [_placeholder(family, spare)]
    return _recycled(service, drafts, spare)


def pack(
    family: str, ports: Ports, wanted: list[Endpoint], present: Sequence[EndpointSlice]
) -> list[SliceDraft]:
    """Put endpoints with the same ports into slices; a draft without endpoints is to go."""
    left = {endpoint.identity: endpoint for endpoint in wanted}
    drafts: list[SliceDraft] = []
    changed: list[SliceDraft] = []
    for item in present:
        before = item.endpoints or ()
        kept = [left.pop(e.identity) for e in before if e.identity in left]
        draft = SliceDraft(family=family, ports=ports, endpoints=kept, present=item)
        drafts.append(draft)
        if kept and tuple(kept) != before:
            changed.append(draft)
    rest = list(left.values())
    for draft in sorted(changed, key=lambda d: -len(d.endpoints)):
        rest = _fill(draft, rest)
    whole = [d for d in drafts if d.endpoints and len(d.endpoints) + len(rest) <= MOST]
    if rest and whole:
        rest = _fill(max(whole, key=lambda d: len(d.endpoints)), rest)
    while rest:
        draft = SliceDraft(family=family, ports=ports, endpoints=[])
        rest = _fill(draft, rest)
        drafts.append(draft)
    return drafts


def _fill(draft: SliceDraft, rest: list[Endpoint]) -> list[Endpoint]:
    room = MOST - len(draft.endpoints)
    draft.endpoints += rest[:room]
    return rest[room:]


def _placeholder(family: str, spare: list[EndpointSlice]) -> SliceDraft:
    """Return the empty slice; one that is already so is kept."""
    empty = next((s for s in spare if not s.endpoints and not s.ports), None)
    if empty is not None:
        spare.remove(empty)
    return SliceDraft(family=family, ports=(), endpoints=[], present=empty)


def _recycled(service: Service, drafts: list[SliceDraft], spare: list[EndpointSlice]) -> SlicePlan:
    for draft in drafts:
        if draft.present is None and spare:
            draft.present = spare.pop()
    labels = labels_for(service)
    return SlicePlan(
        create=tuple(d for d in drafts if d.present is None),
        update=tuple(d for d in drafts if d.present is not None and _differs(d, labels)),
        delete=tuple(spare),
    )


def _differs(draft: SliceDraft, labels: dict[str, str]) -> bool:
    item = draft.present
    return item is None or (item.endpoints or (), item.ports or (), item.metadata.labels) != (
        tuple(draft.endpoints),
        draft.ports,
        labels,
    )
