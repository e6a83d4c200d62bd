"""What the model's values are as the operator's own: its objects, its records, its settings."""

from __future__ import annotations

import functools
from typing import Any

import msgspec

from elasti.api.names import API_VERSION
from elasti.api.types import ElastiService
from elasti.operator.model.children import resolver_slices
from elasti.operator.model.state import ServiceState
from elasti.operator.model.targets import ScaleView, UpdateObjInfo
from elasti.operator.settings import OperatorSettings
from kubeloop.objects.core import EndpointSlice, Service, ServiceEndpoint
from tests.model.world import MOST_PODS, RESOLVERS, Age, Memory

NOW = 1000.0
SETTINGS = OperatorSettings(engage_settle=10.0, release_settle=10.0, resolver_loss_grace=10.0)
_SINCE = {Age.NEVER: None, Age.SETTLING: NOW, Age.SETTLED: NOW - 100.0}
PORT, RESOLVER_PORT = 80, 20000


def _object(of: type[Any], /, **content: Any) -> Any:
    return msgspec.convert(content, of)


ES: ElastiService = _object(
    ElastiService,
    apiVersion=API_VERSION,
    kind="ElastiService",
    metadata={"name": "web", "namespace": "shop", "uid": "u"},
    spec={
        "service": "web",
        "minTargetReplicas": 1,
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
    },
)
SERVICE: Service = _object(
    Service,
    metadata={"name": "web", "namespace": "shop", "uid": "s"},
    spec={
        "clusterIP": "10.0.0.1",
        "ipFamilies": ["IPv4"],
        "selector": {"app": "web"},
        "ports": [{"port": PORT, "protocol": "TCP"}],
    },
)


ENDPOINTS = {one: ServiceEndpoint(addresses=(f"10.1.0.{one}",)) for one in RESOLVERS}
BY_PLACE = {endpoint.place: one for one, endpoint in ENDPOINTS.items()}


@functools.cache
def slices(resolvers: int | None) -> tuple[EndpointSlice, ...]:
    if resolvers is None:
        return ()
    made = resolver_slices(SERVICE, endpoints(resolvers), {PORT: RESOLVER_PORT})
    # A slice of which every resolver is gone is emptied, not removed.
    return made or (EndpointSlice(address_type="IPv4"),)


@functools.cache
def endpoints(resolvers: int) -> tuple[ServiceEndpoint, ...]:
    return tuple(endpoint for one, endpoint in ENDPOINTS.items() if resolvers & one)


@functools.cache
def target(replicas: int) -> UpdateObjInfo:
    return UpdateObjInfo(spec_replicas=replicas, uid="t", version="1")


# Between what is remembered and the operator's own records


def records_of(memory: Memory) -> ServiceState:
    state = ServiceState("u", "web")
    handover = state.handover
    handover.current = memory.current
    handover.engaged_at = _SINCE[memory.engaged]
    handover.ready_since = {
        str(pod): since
        for pod, age in enumerate(memory.ready)
        if (since := _SINCE[age]) is not None
    }
    handover.activity, handover.park = memory.activity, memory.park
    handover.parked_here, handover.owned_uid = memory.parked_here, "t" if memory.owns else ""
    handover.loss_slot = NOW if memory.loss_slot else None
    if memory.decided_on is not None:
        handover.decided_on = ScaleView("t", memory.decided_on, "1")
    state.requests.wake = memory.wake
    state.listing.listed = endpoints(memory.listed)
    state.listing.listed_since = {
        endpoint.place: NOW - 100.0 if memory.long_listed & one else NOW
        for one, endpoint in ENDPOINTS.items()
        if memory.listed & one
    }
    state.listing.to_query = {e.place: e for e in endpoints(memory.to_query)}
    state.listing.legacy_checked = True
    return state


def memory_of(state: ServiceState, before: Memory) -> Memory:
    handover, listing = state.handover, state.listing
    return before._replace(
        current=handover.current,
        engaged=_age(handover.engaged_at),
        ready=tuple(_age(handover.ready_since.get(str(pod))) for pod in range(MOST_PODS)),
        activity=handover.activity,
        park=handover.park,
        parked_here=handover.parked_here,
        owns=bool(handover.owned_uid),
        loss_slot=handover.loss_slot is not None,
        wake=state.requests.wake,
        listed=sum(BY_PLACE[one.place] for one in listing.listed),
        long_listed=sum(
            BY_PLACE[place] for place, since in listing.listed_since.items() if since < NOW
        ),
        to_query=sum(map(BY_PLACE.__getitem__, listing.to_query)),
    )


def _age(since: float | None) -> Age:
    if since is None:
        return Age.NEVER
    return Age.SETTLED if since < NOW else Age.SETTLING
