"""Where Events go, and how hard to try.

A refusal by the server is final: the Event is malformed, not allowed, or its namespace goes. What
never got an answer is tried again, twelve times in two minutes, and then dropped: an Event is not
worth more. The first pause is random, so that not everybody comes back at once.
"""

from __future__ import annotations

import asyncio
import logging
import random
from typing import TYPE_CHECKING, Protocol

from kubeloop.client.errors import ApiError, KubeError, NotFound

if TYPE_CHECKING:
    from kubeloop.aio.backoff import Random
    from kubeloop.client.client import Client
    from kubeloop.controller.occurrences import EventWrite
    from kubeloop.objects.meta import JsonObject
    from kubeloop.objects.patches import Patch

CORE_EVENTS = "v1/events"
SERIES_EVENTS = "events.k8s.io/v1/events"

_TRIES = 12
_PAUSE = 10.0
_log = logging.getLogger(__name__)


class EventSink(Protocol):
    """Takes Events. Raises KubeError."""

    async def create(self, event: JsonObject) -> JsonObject:
        """Create an Event."""

    async def patch(self, namespace: str, name: str, patch: Patch) -> JsonObject:
        """Patch an Event; raises NotFound where it has expired."""


class ApiEventSink:
    """The API server, through a client that stays the caller's."""

    def __init__(self, client: Client, resource: str = CORE_EVENTS) -> None:
        self._events = client.resource(resource)

    async def create(self, event: JsonObject) -> JsonObject:
        """Create an Event."""
        return await self._events.create(event)

    async def patch(self, namespace: str, name: str, patch: Patch) -> JsonObject:
        """Patch an Event."""
        return await self._events.patch(name, patch, namespace=namespace)


class EventWriter:
    """Writes Events to a sink, patiently."""

    def __init__(self, sink: EventSink, *, rand: Random = random.random) -> None:
        self._sink = sink
        self._rand = rand

    async def write(self, write: EventWrite) -> JsonObject | None:
        """Write one Event; None where that was given up."""
        for attempt in range(_TRIES):
            if attempt:
                await asyncio.sleep(_PAUSE * self._rand() if attempt == 1 else _PAUSE)
            try:
                return await self.write_once(write)
            except ApiError as error:
                _log.warning("the server refused event %s: %s", _name(write), error)
                return None
            except KubeError as error:
                _log.info("event %s could not be written: %s", _name(write), error)
        _log.warning("event %s is dropped after %d tries", _name(write), _TRIES)
        return None

    async def write_once(self, write: EventWrite) -> JsonObject:
        """Write one Event without a second try. Raises KubeError."""
        metadata = write.event["metadata"]
        if write.patch is not None:
            try:
                return await self._sink.patch(metadata["namespace"], metadata["name"], write.patch)
            except NotFound:
                _log.debug("event %s has expired and is created anew", _name(write))
        return await self._sink.create(write.event)


def _name(write: EventWrite) -> str:
    return str(write.event["metadata"]["name"])
