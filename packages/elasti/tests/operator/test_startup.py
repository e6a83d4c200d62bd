"""What a replica may say and do before it has heard of everything."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from tests.operator.fakes import Translated
from tests.operator.rig import Rig

from elasti.api.names import MANAGED_BY, PRIVATE_LABEL
from elasti.api.types import ElastiService, ElastiServiceSpec, ScaleTargetRef
from elasti.operator.app import OperatorApp
from elasti.operator.handover.finalize import OrphanSweeper
from elasti.operator.model.children import private_service, resolver_slices
from kubeloop.aio.tasks import finish
from kubeloop.client import Client
from kubeloop.objects.core import Service, ServiceEndpoint
from kubeloop.objects.meta import JsonObject, ObjectMeta
from tests.waiting import eventually

MANY = 100


class Shown:
    """A scope with these objects."""

    def __init__(self, objects: Iterable[Any]) -> None:
        self._objects = tuple(objects)

    def all(self) -> Iterator[Any]:
        return iter(self._objects)


def test_what_an_elastiservice_names_in_the_cache_is_nobodys_orphan():
    web = Service(metadata=ObjectMeta(name="web", namespace="shop", uid="1"))
    (piece,) = resolver_slices(web, [ServiceEndpoint(("10.0.0.1",))], {})
    private = private_service(web)
    assert (private.metadata.labels or {})[PRIVATE_LABEL] == "true"
    assert MANAGED_BY in (piece.metadata.labels or {}).values()
    spec = ElastiServiceSpec(service="web", scale_target_ref=ScaleTargetRef("apps/v1", "Deployment", "web"))  # fmt: skip
    es = ElastiService(metadata=ObjectMeta(name="x", namespace="shop"), spec=spec)

    def orphans(*objects: ElastiService) -> list[str]:
        caches: Any = SimpleNamespace(
            elastiservices=Shown(objects),
            services=Shown([web, private]),
            our_slices=Shown([piece]),
        )
        client: Any = None  # nothing is deleted here
        sweeper = OrphanSweeper(client, caches, period=1.0)
        return [meta.name for _, meta in sweeper.orphans()]

    assert orphans(es) == []
    assert orphans() == [piece.metadata.name, private.metadata.name]


def slow_rules(number: int) -> list[JsonObject]:
    """Rules whose expressions take a while to be found right."""
    return [
        {
            "path": {"type": "RegularExpression", "value": f"/{number}/{rule}/" + "[a-z]?" * 100},
            "response": {"status": 200},
        }
        for rule in range(8)
    ]


@pytest.mark.timeout(180)
async def test_nothing_is_reported_unknown_before_everything_is_known(rig: Rig):
    for number in range(MANY):
        await rig.elastiservice(f"web-{number}", probeResponse=slow_rules(number))
    async with Client(rig.config) as client:
        operator = OperatorApp(
            rig.settings,
            client=client,
            open_client=lambda: Client(rig.config),
            resolver_client=lambda: Translated(rig.resolvers),
        )
        task = asyncio.create_task(operator.run())
        try:
            await eventually(lambda: operator.is_synced, timeout=60, every=0.0)
            assert len(operator.directory) == MANY
        finally:
            operator.stop()
            await finish([task], cancel=False)
