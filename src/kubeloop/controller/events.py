"""The event recorder: tells people, in the cluster, what a controller did and why.

    recorder = EventRecorder(Reporter("elasti-operator", pod_name), ApiEventSink(client))
    manager.add(recorder, group=Group.RECORDERS)
    recorder.warning(service, "NoResolver", "no resolver is ready; the target stays up")

Recording never blocks and never fails: occurrences go to a queue of 1000 that one task empties, and
when it is full they are dropped and counted. Cancelled, the recorder writes what is queued, as long
as the server takes it, then ends.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import random
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from kubeloop.aio.clock import Clock, SystemClock
from kubeloop.aio.tasks import BackgroundTasks
from kubeloop.aio.wait import until
from kubeloop.client.errors import ApiError, KubeError
from kubeloop.controller.event_correlator import EventCorrelator
from kubeloop.controller.event_sink import EventSink, EventWriter
from kubeloop.controller.occurrences import Chore, Correlator, EventType, Occurrence, Reporter
from kubeloop.objects.references import ObjectReference, reference_to

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kubeloop.aio.backoff import Random
    from kubeloop.controller.occurrences import EventWrite
    from kubeloop.objects.gvk import GroupVersionKind

_QUEUE = 1000
_DROPS_PER_LINE = 100
_log = logging.getLogger(__name__)


class EventDetails(TypedDict, total=False):
    """What may be said beside the reason and the message.

    `gvk` is for objects that do not say what they are; `action` is what was done about it.
    """

    gvk: GroupVersionKind
    action: str
    related: ObjectReference
    annotations: Mapping[str, str]


class EventRecorder:
    """Records for one reporter. A runnable for `Group.RECORDERS`; may be used before it runs.

    `correlator` chooses the API: by default core/v1; `EventSeries(reporter)`, with a sink for
    `SERIES_EVENTS`, writes events.k8s.io/v1.
    """

    def __init__(
        self,
        reporter: Reporter,
        sink: EventSink,
        *,
        correlator: Correlator | None = None,
        clock: Clock | None = None,
        rand: Random = random.random,
    ) -> None:
        self._correlator = EventCorrelator(reporter) if correlator is None else correlator
        self._writer = EventWriter(sink, rand=rand)
        self._clock = clock or SystemClock()
        self._queue: asyncio.Queue[Occurrence] = asyncio.Queue(_QUEUE)
        self._ended = False
        self.dropped = 0

    def __repr__(self) -> str:
        return f"<EventRecorder: {self._queue.qsize()} queued, {self.dropped} dropped>"

    def normal(self, obj: Any, reason: str, message: str, **details: Unpack[EventDetails]) -> None:
        """Record that all is as it should be; `obj` is an object, or a reference to one."""
        self._record(obj, "Normal", reason, message, details)

    def warning(self, obj: Any, reason: str, message: str, **details: Unpack[EventDetails]) -> None:
        """Record that something is wrong; `obj` is an object, or a reference to one."""
        self._record(obj, "Warning", reason, message, details)

    def _record(
        self, obj: Any, kind: EventType, reason: str, message: str, details: EventDetails
    ) -> None:
        try:
            regarding = _reference(obj, details.get("gvk"))
        except ValueError as error:
            _log.error("event %s (%s) is about nothing known: %s", reason, message, error)
            return
        occurrence = Occurrence(
            regarding=regarding,
            type=kind,
            reason=reason,
            message=message,
            at=self._clock.now(),
            action=details.get("action", ""),
            related=details.get("related"),
            annotations=tuple(details.get("annotations", {}).items()),
        )
        self._enqueue(occurrence)

    async def run(self) -> None:
        """Write what is recorded until cancelled."""
        async with BackgroundTasks() as chores:
            for chore in self._correlator.chores:
                work = until(functools.partial(self._do, chore), chore.period)
                chores.start(work, name=f"events every {chore.period:g} s")
            try:
                while True:
                    await self._write(await self._queue.get())
            finally:
                self._ended = True
                await self._flush()

    def _enqueue(self, occurrence: Occurrence) -> None:
        if self._ended or self._queue.full():
            self.dropped += 1
            if self.dropped % _DROPS_PER_LINE == 1:  # a flood of events must not flood the log
                _log.warning("event %s is dropped (%d so far)", occurrence.reason, self.dropped)
            return
        self._queue.put_nowait(occurrence)

    async def _write(self, occurrence: Occurrence) -> None:
        write = self._correlator.observe(occurrence)
        if write is not None:
            await self._save(write)

    async def _save(self, write: EventWrite) -> None:
        saved = await self._writer.write(write)
        if saved is not None:
            self._correlator.written(write, saved)

    async def _do(self, chore: Chore) -> None:
        for write in chore.due(self._clock.now()):
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


def _reference(obj: Any, gvk: GroupVersionKind | None) -> ObjectReference:
    return obj if isinstance(obj, ObjectReference) else reference_to(obj, gvk)
