"""The pods behind observed Services, which have no private Service whose slices could be watched.

The EndpointSlices of a namespace are listed at most once in each polling interval, however many of its
Services are observed. A list that fails or takes long leaves what was known: all triggers wait for the lists.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Sequence

from elasti.api.names import MANAGED_BY
from elasti.logger import get_logger
from kubeloop.client.client import Client
from kubeloop.client.errors import KubeError
from kubeloop.objects.core import MANAGED_BY_LABEL, SLICES, EndpointSlice

_log = get_logger(__name__)

_AT_ONCE = 8
_PATIENCE = 5.0


class PublicSlices:
    """Slices of public Services, by namespace; `refresh` reads them."""

    def __init__(self, client: Client, *, period: float) -> None:
        self._slices = client.resource(SLICES, EndpointSlice)
        self._period = period
        self._by_service: dict[str, dict[str, list[EndpointSlice]]] = {}
        self._read_at: dict[str, float] = {}

    async def refresh(self, namespaces: Iterable[str]) -> None:
        """Read the slices of these namespaces, unless that was done a moment ago."""
        before = asyncio.get_running_loop().time() - self._period
        due = [one for one in namespaces if self._read_at.get(one, before) <= before]
        turns = asyncio.Semaphore(_AT_ONCE)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_PATIENCE):
                await asyncio.gather(*(self._read(namespace, turns) for namespace in due))

    async def _read(self, namespace: str, turns: asyncio.Semaphore) -> None:
        found: dict[str, list[EndpointSlice]] = {}
        selector = f"{MANAGED_BY_LABEL}!={MANAGED_BY}"
        try:
            async with turns:
                began = asyncio.get_running_loop().time()
                async for one in self._slices.items(selector=selector, namespace=namespace):
                    found.setdefault(one.service, []).append(one)
        except KubeError as error:
            _log.warning("slices cannot be listed", namespace=namespace, error=str(error))
            return
        self._by_service[namespace], self._read_at[namespace] = found, began

    def of(self, namespace: str, service: str) -> Sequence[EndpointSlice]:
        """Return the slices of one Service."""
        return self._by_service.get(namespace, {}).get(service, ())
