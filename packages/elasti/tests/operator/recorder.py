"""The history of a Service's slices, version by version, as the server tells it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from tests.operator.rig import SLICES, Rig

from kubeloop.aio.tasks import finish
from kubeloop.objects.list_watch import WatchOptions
from kubeloop.objects.meta import JsonObject


class Recorder:
    """Everything that happened to slices, in the server's own order."""

    def __init__(self, rig: Rig) -> None:
        self._rig = rig
        self._events: list[tuple[int, str, JsonObject]] = []

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Recorder]:
        slices = self._rig.client.resource(SLICES, namespace=self._rig.namespace)
        stream = await slices.watch(WatchOptions(timeout_seconds=3600))
        task = asyncio.create_task(self._record(stream), name="recorder")
        try:
            yield self
        finally:
            await finish([task])
            await stream.close()

    async def _record(self, stream: Any) -> None:
        while events := await stream.read():
            for event in events:
                if event.type in ("ADDED", "MODIFIED", "DELETED"):
                    version = int(event.object["metadata"]["resourceVersion"])
                    self._events.append((version, event.type, event.object))

    def dark_moments(self, service: str = "web") -> list[str]:
        """Every version at which neither a ready pod nor the resolver was in the rotation.

        Counted from the first moment at which one was.
        """
        present: dict[str, JsonObject] = {}
        dark, lit = [], False
        for version, kind, obj in sorted(self._events, key=lambda event: event[0]):
            meta = obj["metadata"]
            if (meta.get("labels") or {}).get("kubernetes.io/service-name") != service:
                continue
            if kind == "DELETED":
                present.pop(meta["name"], None)
            else:
                present[meta["name"]] = obj
            bright = any(
                (endpoint.get("conditions") or {}).get("ready")
                for piece in present.values()
                for endpoint in piece.get("endpoints") or ()
            )
            lit = lit or bright
            if lit and not bright:
                dark.append(f"{version}: {kind} {meta['name']}")
        return dark
