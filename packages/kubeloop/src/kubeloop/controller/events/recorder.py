"""The event recorder: reports, in the cluster, what a controller did and why.

    recorder = EventRecorder("elasti-operator", client)
    manager.add(recorder, group=Group.RECORDERS)
    recorder.warning(service, "NoResolver", "no resolver is ready; the target stays up")

A call that could never become an Event (an object without a name or a uid, no reason) raises at
once. Apart from that recording never blocks and never fails: records go to a queue of 1000 that one
task empties, and when it is full they are dropped and counted. Cancelled, the recorder writes what
is queued, as long as the server takes it, then ends.

A refusal by the server is final: the Event is malformed, not allowed, or its namespace is being
deleted. What never got an answer is tried again, twelve times in two minutes, and then dropped: an
Event is not worth more. The first pause is random, so that clients do not all come back at once.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import random
import re
from typing import TYPE_CHECKING, Any, Protocol, TypedDict, Unpack

from kubeloop.aio.clock import Clock, SystemClock
from kubeloop.aio.tasks import BackgroundTasks
from kubeloop.aio.wait import until
from kubeloop.client.errors import ApiError, KubeError, NotFound
from kubeloop.controller.events.correlators import EventCorrelator
from kubeloop.controller.events.event_types import (
    Correlator,
    EventRecord,
    EventType,
    PeriodicTask,
    Reporter,
)
from kubeloop.objects.owners import ObjectReference, reference_to

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kubeloop.aio.backoff import Random
    from kubeloop.client.client import Client
    from kubeloop.controller.events.event_types import EventWrite
    from kubeloop.objects.gvk import GroupVersionKind
    from kubeloop.objects.meta import JsonObject
    from kubeloop.objects.patches import Patch


CORE_EVENTS = "v1/events"
SERIES_EVENTS = "events.k8s.io/v1/events"

_TRIES = 12
_PAUSE = 10.0
_log = logging.getLogger(__name__)


_QUEUE = 1000
_REASON = re.compile(r"[A-Za-z][A-Za-z0-9]{0,127}")
_DROPS_PER_LINE = 100


class EventSink(Protocol):
    """Takes Events. Raises KubeError."""

    async def create(self, event: JsonObject) -> JsonObject:
        """Create an Event."""

    async def patch(self, namespace: str, name: str, patch: Patch) -> JsonObject:
        """Patch an Event; raises NotFound if it has expired."""


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
        """Write one Event; None if that was given up."""
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
                _log.debug("event %s has expired and is created again", _name(write))
        return await self._sink.create(write.event)


def _name(write: EventWrite) -> str:
    return str(write.event["metadata"]["name"])


class EventDetails(TypedDict, total=False):
    """Optional fields beside the reason and the message.

    `gvk` is for objects that do not say what they are; `action` is what was done about it.
    """

    gvk: GroupVersionKind
    action: str
    related: ObjectReference
    annotations: Mapping[str, str]


class EventRecorder:
    """Records for one reporter. A runnable for `Group.RECORDERS`; may be used before it runs.

    `reporter` is the component's name, or a `Reporter` if the instance is to be seen too; `sink` a
    client, or another destination of Events. Raises TypeError for anything else.

    `correlator` chooses the API: by default core/v1; `EventSeries(reporter)`, with a sink for
    `SERIES_EVENTS`, writes events.k8s.io/v1.
    """

    def __init__(
        self,
        reporter: Reporter | str,
        sink: EventSink | Client,
        *,
        correlator: Correlator | None = None,
        clock: Clock | None = None,
        rand: Random = random.random,
    ) -> None:
        who, where = _checked(reporter, sink)
        self._correlator = EventCorrelator(who) if correlator is None else correlator
        self._writer = EventWriter(where, rand=rand)
        self._clock = clock or SystemClock()
        self._queue: asyncio.Queue[EventRecord] = asyncio.Queue(_QUEUE)
        self._ended = False
        self.dropped = 0

    def __repr__(self) -> str:
        return f"<EventRecorder: {self._queue.qsize()} queued, {self.dropped} dropped>"

    def normal(self, obj: Any, reason: str, message: str, **details: Unpack[EventDetails]) -> None:
        """Record that all is as it should be; `obj` is an object, or a reference to one.

        Raises TypeError or ValueError for what could never become an Event.
        """
        self._record(obj, "Normal", reason, message, details)

    def warning(self, obj: Any, reason: str, message: str, **details: Unpack[EventDetails]) -> None:
        """Record that something is wrong; otherwise as `normal`."""
        self._record(obj, "Warning", reason, message, details)

    def _record(
        self, obj: Any, kind: EventType, reason: str, message: str, details: EventDetails
    ) -> None:
        said: Any = message
        if not isinstance(said, str):
            raise TypeError(f"event {reason}: the message is text, not {said!r}; use str() of it")
        if not _REASON.fullmatch(reason):
            raise ValueError(
                f"event reason {reason!r} is not one CamelCase word of at most 128 letters and digits,"
                " as in 'ScaledUp'; what happened goes into the message"
            )
        record = EventRecord(
            regarding=_reference(obj, details.get("gvk"), reason),
            type=kind,
            reason=reason,
            message=message,
            at=self._clock.now(),
            action=details.get("action", ""),
            related=details.get("related"),
            annotations=tuple(details.get("annotations", {}).items()),
        )
        self._enqueue(record)

    async def run(self) -> None:
        """Write what is recorded until cancelled."""
        async with BackgroundTasks() as periodic_tasks:
            for periodic_task in self._correlator.periodic_tasks:
                work = until(functools.partial(self._do, periodic_task), periodic_task.period)
                periodic_tasks.start(work, name=f"events every {periodic_task.period:g} s")
            try:
                while True:
                    await self._write(await self._queue.get())
            finally:
                self._ended = True
                await self._flush()

    def _enqueue(self, record: EventRecord) -> None:
        if self._ended or self._queue.full():
            self.dropped += 1
            if self.dropped % _DROPS_PER_LINE == 1:  # a flood of events must not flood the log
                _log.warning("event %s is dropped (%d so far)", record.reason, self.dropped)
            return
        self._queue.put_nowait(record)

    async def _write(self, record: EventRecord) -> None:
        write = self._correlator.observe(record)
        if write is not None:
            await self._save(write)

    async def _save(self, write: EventWrite) -> None:
        saved = await self._writer.write(write)
        if saved is not None:
            self._correlator.written(write, saved)

    async def _do(self, periodic_task: PeriodicTask) -> None:
        for write in periodic_task.due(self._clock.now()):
            await self._save(write)

    async def _flush(self) -> None:
        """Write what is queued without second tries; the first that gets no answer is the last."""
        while not self._queue.empty():
            write = self._correlator.observe(self._queue.get_nowait())
            if write is None:
                continue
            try:
                await self._writer.write_once(write)
            except ApiError as error:
                _log.warning("the server refused an event: %s", error)
            except KubeError as error:
                self.dropped += 1 + self._queue.qsize()
                _log.warning("the last events are dropped: %s", error)
                return


def _checked(reporter: Any, sink: Any) -> tuple[Reporter, EventSink]:
    if isinstance(reporter, str) and reporter:
        reporter = Reporter(reporter)
    if not hasattr(sink, "create") and hasattr(sink, "resource"):
        sink = ApiEventSink(sink)
    if not isinstance(reporter, Reporter) or not hasattr(sink, "create"):
        raise TypeError(
            "EventRecorder(component, client): the first is a name such as 'my-controller', the"
            f" second a Client; got {reporter!r} and {sink!r}"
        )
    return reporter, sink


def _reference(obj: Any, gvk: GroupVersionKind | None, reason: str) -> ObjectReference:
    """Return what an event is about; `kubectl describe` finds it by kind, name and uid."""
    if isinstance(obj, ObjectReference):
        return obj
    if not isinstance(obj, dict) and not hasattr(obj, "metadata"):
        raise TypeError(
            f"event {reason} is about {obj!r}, which is not an object: it has no metadata"
        )
    found = reference_to(obj, gvk)
    if not found.name or not found.uid:
        missing = "name" if not found.name else "uid"
        raise ValueError(
            f"event {reason} is about a {found.kind} without metadata.{missing}: give it the object"
            " as it was read, or an ObjectReference"
        )
    return found
