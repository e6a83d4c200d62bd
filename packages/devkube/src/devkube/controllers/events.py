"""Events: what controllers report about objects.

Recording never waits and never fails a reconcile: events are queued, and one task writes them. One
that repeats raises the count of the first. When the queue is full, events are dropped; they are
worth no memory.
"""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import logging
from typing import TYPE_CHECKING, Any

from kubeloop.client.errors import KubeError, NotFound
from kubeloop.objects.meta import access_for
from kubeloop.objects.patches import MergePatch
from kubeloop.objects.times import format_time

if TYPE_CHECKING:
    from kubeloop.aio.clock import Clock
    from kubeloop.client.client import Client
    from kubeloop.objects.gvk import GroupVersionKind
    from kubeloop.objects.meta import JsonObject


_log = logging.getLogger(__name__)
_LONGEST_MESSAGE = 1024


@dataclasses.dataclass(frozen=True, slots=True)
class _Event:
    """What makes two events the same."""

    api_version: str
    kind: str
    namespace: str
    name: str
    uid: str
    type: str
    reason: str
    message: str
    component: str


@dataclasses.dataclass(slots=True)
class _Written:
    name: str
    count: int


class ControllerEventRecorder:
    """Writes events in the background; `run` is its task."""

    def __init__(
        self, client: Client, *, clock: Clock, queue_size: int = 1000, remembered: int = 512
    ) -> None:
        self._events = client.resource("v1/events")
        self._clock = clock
        self._queue: asyncio.Queue[_Event] = asyncio.Queue(queue_size)
        self._written: collections.OrderedDict[_Event, _Written] = collections.OrderedDict()
        self._remembered = remembered
        self._serial = 0

    def events(self, component: str, kind: GroupVersionKind) -> ComponentEvents:
        """Return what a component tells about objects of a kind."""
        return ComponentEvents(self, component, kind)

    def record(self, event: _Event) -> None:
        """Queue an event."""
        try:
            self._queue.put_nowait(event)
        except asyncio.QueueFull:
            _log.warning("event dropped, too many wait: %s %s", event.reason, event.message)

    async def run(self) -> None:
        """Write events until cancelled."""
        while True:
            event = await self._queue.get()
            try:
                await self._write(event)
            except KubeError as error:
                _log.debug("event not written: %s: %s", event.reason, error)

    async def _write(self, event: _Event) -> None:
        known = self._written.get(event)
        if known is not None and await self._repeat(event, known):
            return
        document = self._document(event)
        await self._events.create(document)
        self._written[event] = _Written(document["metadata"]["name"], 1)
        if len(self._written) > self._remembered:
            self._written.popitem(last=False)

    async def _repeat(self, event: _Event, known: _Written) -> bool:
        patch = {"count": known.count + 1, "lastTimestamp": format_time(self._clock.now())}
        namespace = event.namespace or "default"
        try:
            await self._events.patch(known.name, MergePatch(patch), namespace=namespace)
        except NotFound:
            del self._written[event]
            return False
        known.count += 1
        return True

    def _document(self, event: _Event) -> JsonObject:
        now = self._clock.now()
        stamp = format_time(now)
        self._serial += 1
        namespace = event.namespace or "default"
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {
                "name": f"{event.name}.{int(now.timestamp() * 1e6) * 1000 + self._serial:x}",
                "namespace": namespace,
            },
            "involvedObject": {
                "apiVersion": event.api_version,
                "kind": event.kind,
                "namespace": event.namespace,
                "name": event.name,
                "uid": event.uid,
            },
            "reason": event.reason,
            "message": event.message,
            "type": event.type,
            "source": {"component": event.component},
            "reportingComponent": event.component,
            "reportingInstance": "",
            "firstTimestamp": stamp,
            "lastTimestamp": stamp,
            "count": 1,
        }


@dataclasses.dataclass(frozen=True, slots=True)
class ComponentEvents:
    """One component's way to tell about objects of one kind."""

    recorder: ControllerEventRecorder
    component: str
    kind: GroupVersionKind

    def normal(self, obj: Any, reason: str, message: str) -> None:
        """Tell that something went as it should."""
        self._report("Normal", obj, reason, message)

    def warning(self, obj: Any, reason: str, message: str) -> None:
        """Tell that something is wrong."""
        self._report("Warning", obj, reason, message)

    def _report(self, severity: str, obj: Any, reason: str, message: str) -> None:
        access = access_for(type(obj))
        self.recorder.record(
            _Event(
                api_version=self.kind.api_version,
                kind=self.kind.kind,
                namespace=access.namespace(obj),
                name=access.name(obj),
                uid=access.uid(obj),
                type=severity,
                reason=reason,
                message=message[:_LONGEST_MESSAGE],
                component=self.component,
            )
        )
