"""Slices of which no event tells: ours that went while nobody watched, public ones that come late."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from elasti.api.types import ElastiService, ElastiServiceSpec, ScaleTargetRef
from elasti.operator.handover.children import resolver_slices
from elasti.operator.handover.machine import State
from elasti.operator.handover.observe import ClusterReader, Facts
from elasti.operator.handover.plan import requeue_after
from elasti.operator.handover.state import ServiceState
from elasti.operator.settings import OperatorSettings
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

    async def follow(self, *_what: object) -> None:
        return None

    async def read(self, *_what: object) -> None:
        return None

    def ready(self) -> tuple[ServiceEndpoint, ...]:
        return ()


def written(version: str) -> EndpointSlice:

    (piece,) = resolver_slices(WEB, [ServiceEndpoint(("10.0.0.1",))], {})
    meta = msgspec.structs.replace(piece.metadata, resource_version=version)
    return msgspec.structs.replace(piece, metadata=meta)


async def shown(server: Any, memory: ServiceState) -> list[str]:
    nothing: Any = Nothing()
    observer = ClusterReader(
        client=server,
        services=server,
        private_slices=server,
        our_slices=server,
        targets=nothing,
        resolvers=nothing,
    )
    facts = await observer.observe(ES, memory, lambda _event: None)
    return [piece.metadata.name for piece in facts.slices]


@pytest.fixture
def memory() -> ServiceState:
    made = ServiceState("uid", "web", legacy_checked=True)
    piece = written("10")
    made.slices.wrote(piece.metadata.name, "10", piece)
    return made


async def test_a_cache_that_is_behind_a_write_is_not_believed(memory: ServiceState):
    server = Server("9")
    assert await shown(server, memory) == [written("10").metadata.name]
    assert server.asked == 0


async def test_a_slice_that_went_while_the_watch_was_down_is_not_taken_for_published(
    memory: ServiceState,
):
    server = Server("20")
    assert await shown(server, memory) == []
    assert await shown(server, memory) == []
    assert server.asked == 1


async def test_a_slice_that_the_cache_is_about_to_show_is_there(memory: ServiceState):
    name = written("10").metadata.name
    assert await shown(Server("20", name), memory) == [name]


@pytest.mark.parametrize("soon", [True, False])
def test_a_public_slice_that_comes_after_the_private_one_is_looked_for(soon: bool):
    memory = ServiceState("uid", "web")
    memory.state = State.WAKING
    looks = requeue_after(
        Facts(es=ES, now=0.0, ready_soon=soon), memory, OperatorSettings(), now=0.0, lost_for=0.0
    )
    assert looks == (1.0 if soon else None)
