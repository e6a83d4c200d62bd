"""What a test of this suite talks to: one of the servers, through kubeloop, in its own namespace."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import pytest

from kubeloop.client import ApiError, Client, NotFound
from kubeloop.client.resource import Resource
from kubeloop.client.wire.watch import WireWatch
from kubeloop.objects.list_watch import BOOKMARK, ListOptions, WatchEvent, WatchOptions
from kubeloop.objects.meta import JsonObject, PartialObjectMetadata
from tests.conformance.raw import JSON, Answer, Raw
from tests.conformance.servers import DEVCLUSTER, Server
from tests.waiting import eventually

PATIENCE = 40.0


@dataclass(frozen=True, slots=True)
class Kube:
    """A server, an administrator's client, and a namespace that nobody else uses."""

    server: Server
    client: Client
    raw: Raw
    namespace: str

    @property
    def is_dev(self) -> bool:
        """Whether this is the dev cluster; only for what the behaviour's row says differs."""
        return self.server.name == DEVCLUSTER

    @property
    def malformed(self) -> int:
        """The code for what the real server's storage stumbles over, and ours refuses."""
        return 400 if self.is_dev else 500

    def of(self, resource: str) -> Resource[JsonObject]:
        """A resource in the test's namespace."""
        return self.client.resource(resource, namespace=self.namespace)

    def cluster(self, resource: str) -> Resource[JsonObject]:
        """A cluster-scoped resource, or all namespaces of one."""
        return self.client.resource(resource)

    @property
    def maps(self) -> Resource[JsonObject]:
        return self.of("v1/configmaps")

    @property
    def pods(self) -> Resource[JsonObject]:
        return self.of("v1/pods")

    @property
    def services(self) -> Resource[JsonObject]:
        return self.of("v1/services")

    @property
    def deployments(self) -> Resource[JsonObject]:
        return self.of("apps/v1/deployments")

    @property
    def replicasets(self) -> Resource[JsonObject]:
        return self.of("apps/v1/replicasets")

    @property
    def statefulsets(self) -> Resource[JsonObject]:
        return self.of("apps/v1/statefulsets")

    @property
    def slices(self) -> Resource[JsonObject]:
        return self.of("discovery.k8s.io/v1/endpointslices")

    def path(self, resource: str, *rest: str) -> str:
        """The path of a collection of the namespace (`apps/v1/deployments`), or below it."""
        group, _, plural = resource.rpartition("/")
        root = f"/api/{group}" if "/" not in group else f"/apis/{group}"
        return "/".join([root, "namespaces", self.namespace, plural, *rest])

    async def send(self, method: str, path: str, body: object = None, **more: Any) -> Answer:
        """Send a raw request."""
        return await self.raw.send(method, path, body, **more)

    async def version_now(self) -> str:
        """The resource version of this moment."""
        return (await self.maps.list(ListOptions(limit=1))).resource_version

    @contextlib.asynccontextmanager
    async def watching(
        self, resource: Resource[JsonObject], **options: Any
    ) -> AsyncIterator[Watching]:
        """Watch a resource; the options are those of `WatchOptions`, without bookmarks unless asked."""
        watch = await resource.watch(WatchOptions(**{"allow_bookmarks": False, **options}))
        try:
            yield Watching(watch)
        finally:
            await watch.close()


class Watching:
    """An open watch, and what it said so far."""

    def __init__(self, watch: WireWatch[JsonObject]) -> None:
        self._watch = watch
        self._buffer: list[WatchEvent[JsonObject]] = []

    async def next(self) -> WatchEvent[JsonObject]:
        """Return the next event; AssertionError if none comes."""
        async with asyncio.timeout(PATIENCE):
            if not self._buffer:
                self._buffer = list(await self._watch.read())
        assert self._buffer, "the watch ended"
        return self._buffer.pop(0)

    async def take(self, count: int) -> list[WatchEvent[JsonObject]]:
        """Return so many events."""
        return [await self.next() for _ in range(count)]

    async def bookmark(self) -> PartialObjectMetadata:
        """Return the next event, which must be a bookmark."""
        event = await self.next()
        assert event.type == BOOKMARK, event
        return cast("PartialObjectMetadata", event.object)

    async def names(self, count: int) -> list[tuple[str, str]]:
        """Return the types and the names of so many events."""
        return [(event.type, event.object["metadata"]["name"]) for event in await self.take(count)]

    async def rest(self) -> list[WatchEvent[JsonObject]]:
        """Return everything until the server ends the watch."""
        events, self._buffer = self._buffer, []
        async with asyncio.timeout(PATIENCE):
            while more := await self._watch.read():
                events.extend(more)
        return events


async def refused(work: Awaitable[object], code: int, reason: str = "") -> ApiError:
    """Await what a server must refuse; return the refusal."""
    with pytest.raises(ApiError) as caught:
        await work
    error = caught.value
    said = (error.code, error.reason)
    assert said == (code, reason or error.reason), f"{said} {error}"
    return error


async def gone(resource: Resource[JsonObject], name: str, *, timeout: float = PATIENCE) -> None:
    """Wait until there is no such object."""

    async def absent() -> bool:
        try:
            await resource.get(name)
        except NotFound:
            return True
        return False

    await eventually(absent, timeout=timeout)


async def names(resource: Resource[JsonObject], **selectors: str) -> list[str]:
    """The names of the objects that selectors match, in the server's order."""
    return [obj["metadata"]["name"] async for obj in resource.items(**selectors)]  # type: ignore[arg-type]  # keywords


def fields_of(error: ApiError) -> set[str]:
    """The fields that a refusal blames."""
    return {cause.field for cause in error.causes}


def without(obj: Mapping[str, Any], *keys: str) -> JsonObject:
    """A copy without some of the fields."""
    return {key: value for key, value in obj.items() if key not in keys}


__all__ = [
    "JSON",
    "Kube",
    "Watching",
    "eventually",
    "fields_of",
    "gone",
    "names",
    "refused",
    "without",
]
