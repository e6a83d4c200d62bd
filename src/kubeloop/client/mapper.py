"""Kinds and names to resources, remembered between questions.

The first question discovers; later ones are answered from memory. A miss may only mean that a
definition was installed since, so it discovers once more, but no oftener than every few seconds,
and all who ask at the same time share one run. `invalidate` forgets.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol, TypeVar

from kubeloop.client.errors import NoMatch
from kubeloop.client.resource_index import ResourceIndex
from kubeloop.client.single_flight import SingleFlight

if TYPE_CHECKING:
    from collections.abc import Callable

    from kubeloop.client.discovery_documents import Discovered, ResourceInfo

R = TypeVar("R")

_SECONDS_BETWEEN = 5.0


class DiscoverySource(Protocol):
    """Where the mapper learns what there is."""

    async def fetch(self) -> Discovered:
        """Read everything anew. Raises `KubeError`."""


class RestMapper:
    """The resources of one server, by kind and by name."""

    def __init__(
        self, discovery: DiscoverySource, *, seconds_between: float = _SECONDS_BETWEEN
    ) -> None:
        self._discovery = discovery
        self._seconds_between = seconds_between
        self._flight = SingleFlight(self._discover)
        self._index: ResourceIndex | None = None
        self._discovered_at = 0.0

    async def by_kind(self, api_version: str, kind: str) -> ResourceInfo:
        """Return the resource of a kind: `("apps/v1", "Deployment")`, `("apps", "Deployment")`.

        Raises `NoMatch`, `AmbiguousMatch` or what discovery raises.
        """
        return await self._find(lambda index: index.by_kind(api_version, kind))

    async def resolve(self, name: str) -> ResourceInfo:
        """Return what a name means: `deploy`, `deployments.apps`, `deployments.v1.apps`.

        Raises `NoMatch`, `AmbiguousMatch` or what discovery raises.
        """
        return await self._find(lambda index: index.resolve(name))

    async def resources(self) -> tuple[ResourceInfo, ...]:
        """Return all resources, in the server's order."""
        return await self._find(lambda index: index.resources)

    async def refresh(self) -> None:
        """Discover anew, unless that was done just now. Raises what discovery raises."""
        if self._index is not None and not self._is_fresh():
            await self._flight.run()

    def invalidate(self) -> None:
        """Discover anew at the next question."""
        self._index = None

    async def _find(self, question: Callable[[ResourceIndex], R]) -> R:
        index = self._index
        if index is None:
            return question(await self._flight.run())
        try:
            return question(index)
        except NoMatch:
            if self._is_fresh():
                raise
        return question(await self._flight.run())

    def _is_fresh(self) -> bool:
        now = asyncio.get_running_loop().time()
        return now - self._discovered_at < self._seconds_between

    async def _discover(self) -> ResourceIndex:
        self._index = ResourceIndex(await self._discovery.fetch())
        self._discovered_at = asyncio.get_running_loop().time()
        return self._index
