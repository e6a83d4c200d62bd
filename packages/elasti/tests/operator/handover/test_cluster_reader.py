"""Slices of which no event tells: ours that went while nobody watched, public ones that come late."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from tests.operator.states import service_state

from elasti.api.states import State
from elasti.api.types import ElastiService, ElastiServiceSpec, ScaleTargetRef
from elasti.operator.autoscalers.base import Autoscalers
from elasti.operator.doze.reader import DozeReader
from elasti.operator.handover.cluster_reader import ClusterReader
from elasti.operator.handover.plan import requeue_after
from elasti.operator.model.children import resolver_slices
from elasti.operator.model.facts import Facts
from elasti.operator.model.state import ServiceState
from elasti.operator.settings import OperatorSettings
from elasti.operator.watch.directory import Directory
from elasti.operator.watch.neighbours import Neighbours
from elasti.operator.watch.targets import WatchedTarget
from kubeloop.aio.clock import SystemClock
from kubeloop.client.errors import NotFound, Status
from kubeloop.objects.core import EndpointSlice, Service, ServiceEndpoint
from kubeloop.objects.meta import ObjectMeta

WEB = Service(metadata=ObjectMeta(name="web", namespace="shop", uid="1"))
SPEC = ElastiServiceSpec(
    service="web", scale_target_ref=ScaleTargetRef("apps/v1", "Deployment", "web")
)
ES = ElastiService(metadata=ObjectMeta(name="web", namespace="shop"), spec=SPEC)


class Server:
    """An API server with some slices; and a cache of it that has come to a version, and shows none."""

    def __init__(self, version: str, *slices: str) -> None:
        self._version = version
        self._slices = slices
        self.asked = 0

    def resource(self, *_what: object) -> Server:
        return self

    def by_index(self, *_index: str) -> Iterator[EndpointSlice]:
        return iter(())

    async def get(self, name: str, *, namespace: str) -> object:
        self.asked += 1
        if name not in self._slices:
            raise NotFound(Status(code=404, reason="NotFound", message=f"{namespace}/{name}"))
        return object()

    def find(self, _namespace: str, _name: str) -> None:
        return None

    def version(self, _namespace: str) -> str:
        return self._version


class Nothing:
    """No target, no resolvers."""

    finding = None

    async def read(self, *_what: object) -> None:
        return None

    def ready(self) -> tuple[ServiceEndpoint, ...]:
        return ()

    def lost_for(self) -> float:
        return 0.0

    def held_by(self, _owner: object) -> dict[int, int]:
        return {}


def written(version: str) -> EndpointSlice:

    (piece,) = resolver_slices(WEB, [ServiceEndpoint(("10.0.0.1",))], {})
    meta = msgspec.structs.replace(piece.metadata, resource_version=version)
    return msgspec.structs.replace(piece, metadata=meta)


async def shown(server: Any, state: ServiceState) -> list[str]:
    nothing: Any = Nothing()
    caches: Any = SimpleNamespace(
        services=server, private_slices=server, our_slices=server, resolvers=nothing
    )
    reader = ClusterReader(
        neighbours=Neighbours(server, OperatorSettings(), lambda _namespaces: None),
        client=server,
        caches=caches,
        targets=nothing,
        autoscalers=Autoscalers(server, ()),
        directory=Directory(),
        definition=nothing,
        ports=nothing,
        clock=SystemClock(),
        dozes=DozeReader(
            client=server, scales=nothing, directory=Directory(), settings=OperatorSettings()
        ),
    )
    snapshot = await reader.read(ES, state, WatchedTarget(nothing))
    state.note(snapshot)
    return [piece.metadata.name for piece in snapshot.slices]


@pytest.fixture
def state() -> ServiceState:
    made = service_state(legacy_checked=True)
    piece = written("10")
    made.own_writes.slices.wrote(piece.metadata.name, "10", piece)
    return made


async def test_a_cache_that_is_behind_a_write_is_not_believed(state: ServiceState):
    server = Server("9")
    assert await shown(server, state) == [written("10").metadata.name]
    assert server.asked == 0


async def test_a_slice_that_went_while_the_watch_was_down_is_not_taken_for_published(
    state: ServiceState,
):
    server = Server("20")
    assert await shown(server, state) == []
    assert await shown(server, state) == []
    assert server.asked == 1


async def test_a_slice_that_the_cache_is_about_to_show_is_there(state: ServiceState):
    name = written("10").metadata.name
    assert await shown(Server("20", name), state) == [name]


@pytest.mark.parametrize("soon", [True, False])
def test_a_public_slice_that_comes_after_the_private_one_is_looked_for(soon: bool):
    state = service_state(State.WAKING)
    pause = requeue_after(
        Facts(es=ES, now=0.0, ready_soon=soon), state, OperatorSettings(), now=0.0, lost_for=0.0
    )
    assert pause == (1.0 if soon else None)
