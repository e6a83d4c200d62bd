"""An informer meets a real 410: the API server no longer has the version at which its watch ended."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from kubeloop.client.client import Client
from kubeloop.informer import SharedInformerFactory
from kubeloop.informer.metrics import NoMetrics
from tests.controlplane.rig import ControlPlane, Options
from tests.waiting import eventually

if TYPE_CHECKING:
    from tests.controlplane.binaries import Binaries

pytestmark = pytest.mark.controlplane

START_SECONDS = 60.0


class WatchEnds(NoMetrics):
    """Counts the ends of watches by reason."""

    def __init__(self) -> None:
        self.reasons: Counter[str] = Counter()

    def watch_ended(self, *, reason: str) -> None:
        self.reasons[reason] += 1


def config_map(name: str, **data: str) -> dict[str, Any]:
    return {"metadata": {"name": name}, "data": data}


async def test_an_informer_whose_watch_expired_misses_nothing(controlplane_binaries: Binaries):
    rig = await asyncio.to_thread(
        ControlPlane, controlplane_binaries, Options(controllers=False, scheduler=False)
    )
    try:
        await follow(rig)
    finally:
        await asyncio.to_thread(rig.close)


async def follow(rig: ControlPlane) -> None:
    ends = WatchEnds()
    async with Client.from_kubeconfig(rig.kubeconfig) as client:
        maps = client.resource("v1/configmaps", namespace=rig.create_namespace("expiry"))
        await maps.create(config_map("kept", x="old"))
        await maps.create(config_map("goes"))
        factory = SharedInformerFactory(client, namespace=maps.namespace, metrics=ends)
        informer = factory.informer("v1/configmaps", dict)
        async with factory.running():
            await factory.wait_for_sync(timeout=20)
            # A server that starts has a cache that begins now: it answers an older version with 410. The
            # informer's version is older only if something else was written since.
            await client.resource("v1/secrets", namespace=maps.namespace).create(
                {"metadata": {"name": "unwatched"}}
            )
            await asyncio.to_thread(rig.apiserver.kill)
            await asyncio.to_thread(rig.apiserver.launch)
            await asyncio.to_thread(rig.apiserver.wait_ready, START_SECONDS)
            await maps.delete("goes")
            await maps.create(config_map("comes"))

            async def complete() -> bool:
                names = {item["metadata"]["name"] for item in informer.store.list()}
                return names >= {"kept", "comes"} and "goes" not in names

            await eventually(complete, timeout=60)
            assert ends.reasons["expired"], ends.reasons
