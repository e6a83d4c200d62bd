"""Reads everything around one ElastiService; parts that cannot be read are reported, not hidden."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime as dt
from typing import TYPE_CHECKING, TypeVar

from elasti.api.names import KIND, private_service_name
from elasti.api.view import dependency_tree
from elasti.cli.describe.model import (
    Description,
    EventSummary,
    PodSummary,
    ServiceSummary,
    SliceSummary,
    TargetSummary,
    Unreadable,
    advice,
    event_from,
    pod_from,
    service_from,
    slice_from,
)
from elasti.cli.elastiservices import ElastiServices
from elasti.cli.running import connected
from elasti.dashboard.live import read_held, read_trigger_values
from elasti.operator.model.children import slice_names
from elasti.operator.model.targets import target_of
from elasti.operator.scale_handler import NotScalable, ScaleHandler
from kubeloop.client.errors import KubeError, NotFound

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from elasti.api.types import ElastiService
    from elasti.cli.cluster import AccessOptions
    from kubeloop.client import Client

T = TypeVar("T")
_MOST_EVENTS = 12


async def describe(
    access: AccessOptions, name: str, *, namespace: str | None, elasti_namespace: str
) -> Description:
    """Gather everything about an ElastiService, with advice. Raises Failure."""
    async with connected(access) as client:
        es = await ElastiServices(client, namespace or client.namespace).get(name)
        found = await _around(client, es, elasti_namespace)
        if es.spec.depends_on:
            tree = await readable(_tree(client, es))
            lines = (f"unknown: {tree.why}",) if isinstance(tree, Unreadable) else tuple(tree)
            found = dataclasses.replace(found, dependencies=lines)
    return dataclasses.replace(found, advice=tuple(advice(found)))


async def _around(client: Client, es: ElastiService, elasti_namespace: str) -> Description:
    target = await readable(target_summary(client, es))
    selector = target.selector if isinstance(target, TargetSummary) else ""
    pods, services, slices, events, held, values = await asyncio.gather(
        readable(_pods(client, es, selector)),
        readable(_services(client, es)),
        readable(_slices(client, es)),
        readable(_events(client, es)),
        read_held(client, elasti_namespace),
        read_trigger_values(client, elasti_namespace),
    )
    key = (es.metadata.namespace, es.spec.service)
    return Description(
        es=es,
        now=dt.datetime.now(dt.UTC),
        target=target,
        pods=pods
        if selector or isinstance(pods, Unreadable)
        else Unreadable("the target's selector is unknown"),
        services=services,
        slices=slices,
        events=events,
        held=None if held.counts is None else held.counts.get(key, 0),
        held_why=held.why,
        values=values.get(f"{es.metadata.namespace}/{es.metadata.name}", {}),
    )


async def readable(part: Awaitable[T]) -> T | Unreadable:
    """Return the value, or the reason why it cannot be read."""
    try:
        return await part
    except (KubeError, NotScalable, ValueError) as error:  # a target's name may be invalid
        return Unreadable(str(error))


async def target_summary(client: Client, es: ElastiService) -> TargetSummary:
    """Read a target's scale. Raises KubeError, NotScalable or ValueError."""
    target = target_of(es)
    info = await ScaleHandler(client).resource(target)
    scales = client.resource(info.gvr, namespace=target.namespace).subresource("scale")
    scale = await scales.get(target.name)
    status = scale.get("status") or {}
    return TargetSummary(
        wanted=(scale.get("spec") or {}).get("replicas", 0),
        present=status.get("replicas", 0),
        selector=status.get("selector", ""),
    )


async def _tree(client: Client, es: ElastiService) -> list[str]:
    others = await ElastiServices(client, es.metadata.namespace).all()
    return dependency_tree(es, {one.metadata.name: one for one in others})


async def _pods(client: Client, es: ElastiService, selector: str) -> tuple[PodSummary, ...]:
    if not selector:
        return ()
    pods = client.resource("v1/pods", namespace=es.metadata.namespace).items(selector=selector)
    return tuple(sorted([pod_from(pod) async for pod in pods], key=lambda pod: pod.name))


async def _services(client: Client, es: ElastiService) -> tuple[ServiceSummary, ...]:
    services = client.resource("v1/services", namespace=es.metadata.namespace)
    found = []
    for role, name in (
        ("public", es.spec.service),
        ("private", private_service_name(es.spec.service)),
    ):
        try:
            found.append(service_from(await services.get(name), role))
        except NotFound:
            found.append(ServiceSummary(role=role, name=name, exists=False))
    return tuple(found)


async def _slices(client: Client, es: ElastiService) -> tuple[SliceSummary, ...]:
    slices = client.resource("discovery.k8s.io/v1/endpointslices", namespace=es.metadata.namespace)
    names = f"{es.spec.service}, {private_service_name(es.spec.service)}"
    ours = frozenset(slice_names(es.spec.service).values())
    pager = slices.items(selector=f"kubernetes.io/service-name in ({names})")
    return tuple(
        [slice_from(endpoint_slice, resolver_names=ours) async for endpoint_slice in pager]
    )


async def _events(client: Client, es: ElastiService) -> tuple[EventSummary, ...]:
    events = client.resource("v1/events", namespace=es.metadata.namespace)
    names = {es.metadata.name, es.spec.scale_target_ref.name}
    found = []
    for name in sorted(names):
        pager = events.items(field_selector=f"involvedObject.name={name}")
        found += [event_from(event) async for event in pager]
    kinds = {KIND, es.spec.scale_target_ref.kind}
    chosen = [event for event in found if event.about.partition("/")[0] in kinds]
    chosen.sort(key=lambda event: event.at or dt.datetime.min.replace(tzinfo=dt.UTC))
    return tuple(chosen[-_MOST_EVENTS:])
