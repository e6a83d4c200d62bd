"""KEDA's part in a pause, played: it reports a paused ScaledObject as paused. It scales nothing."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any, Protocol

from tests.operator import kinds
from tests.operator.servers import define

from elasti.api.names import PAUSED
from elasti.triggers.keda import SCALED_OBJECTS
from kubeloop.client import Client
from kubeloop.informer import SharedInformerFactory
from kubeloop.objects.patches import MergePatch

KEDA = {"type": "keda", "name": "web"}
"""An ElastiService's `autoscaler`."""


class Place(Protocol):
    """What the fake KEDA works on: a rig, or anything else with a client and a namespace."""

    @property
    def client(self) -> Client:
        """The administrator's."""

    @property
    def namespace(self) -> str:
        """The ScaledObject's."""


class FakeKeda:
    """Reports a paused ScaledObject as paused, like KEDA, unless told not to."""

    def __init__(self, rig: Place) -> None:
        self.objects = rig.client.resource(SCALED_OBJECTS, namespace=rig.namespace)
        self.reports = True
        self._factory = SharedInformerFactory(rig.client, namespace=rig.namespace)
        informer = self._factory.informer(SCALED_OBJECTS, dict)
        informer.add_handler(on_add=self._look, on_update=lambda _old, new: self._look(new))

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[FakeKeda]:
        async with self._factory.running():
            await self._factory.wait_for_sync(timeout=10)
            yield self

    async def annotations(self) -> dict[str, str]:
        return (await self.objects.get("web"))["metadata"].get("annotations") or {}

    async def set_active(self, active: bool) -> None:
        """Say that the scalers see work, or none."""
        condition = {"type": "Active", "status": str(active)}
        body = MergePatch({"status": {"conditions": [condition]}})
        await self.objects.subresource("status").patch("web", body)

    async def _look(self, found: dict[str, Any]) -> None:
        paused = (found["metadata"].get("annotations") or {}).get(PAUSED) == "true"
        word = "True" if paused else "False"
        shown = [c["status"] for c in (found.get("status") or {}).get("conditions") or ()]
        if self.reports and shown != [word]:
            status = {"conditions": [{"type": "Paused", "status": word}]}
            await self.objects.subresource("status").patch("web", MergePatch({"status": status}))


@contextlib.asynccontextmanager
async def keda_on(rig: Place, **annotations: str) -> AsyncIterator[FakeKeda]:
    """A ScaledObject `web`, and KEDA."""
    await define(rig.client, kinds.scaled_object())
    keda = FakeKeda(rig)
    await keda.objects.create(
        {
            "apiVersion": "keda.sh/v1alpha1",
            "kind": "ScaledObject",
            "metadata": {"name": "web", "annotations": annotations},
            "spec": {},
        }
    )
    async with keda.running():
        yield keda
