"""One open watch of a `FakeSource`, and what it sees of the source's changes."""

from __future__ import annotations

import asyncio
import functools
from collections import deque
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from kubeloop.objects.fields import FieldSelector
from kubeloop.objects.list_watch import (
    ADDED,
    BOOKMARK,
    DELETED,
    INITIAL_EVENTS_END,
    MODIFIED,
    WatchEvent,
)
from kubeloop.objects.meta import DICT_ACCESS, JsonObject, Key, ObjectMeta, PartialObjectMetadata
from kubeloop.objects.selectors import LabelSelector
from kubeloop.testing.fake_copies import copied

if TYPE_CHECKING:
    from kubeloop.client.errors import KubeError
    from kubeloop.objects.list_watch import ListOptions, WatchOptions
    from kubeloop.testing.fake_source import FakeSource


T = TypeVar("T")


class LogEntry(NamedTuple):
    """One change: what was before (None: nothing), what is after (None: deleted)."""

    version: int
    key: Key
    before: JsonObject | None
    after: JsonObject | None
    last: JsonObject
    """The object as the event carries it; a deletion has the version of the deletion."""


def matches(obj: JsonObject, options: ListOptions | WatchOptions) -> bool:
    """Whether an object is in the slice that a request asks for."""
    labels, fields = _selectors(options.label_selector, options.field_selector)
    return labels.matches(DICT_ACCESS.labels(obj)) and fields.matches_object(obj)


@functools.lru_cache(maxsize=256)
def _selectors(labels: str, fields: str) -> tuple[LabelSelector, FieldSelector]:
    """Read both: each object of a list, and each change, is compared with them."""
    return LabelSelector.parse(labels), FieldSelector.parse(fields)


def event_for(entry: LogEntry, options: WatchOptions) -> tuple[str, JsonObject] | None:
    """Return the event that a watch with these options sees of a change, if any."""
    before = entry.before is not None and matches(entry.before, options)
    after = entry.after is not None and matches(entry.after, options)
    if before and after:
        return MODIFIED, entry.last
    if after:
        return ADDED, entry.last
    return (DELETED, at_version(entry.before or {}, entry.version)) if before else None


def at_version(obj: JsonObject, version: int) -> JsonObject:
    """Return a copy of an object at another version."""
    changed = copied(obj)
    changed["metadata"]["resourceVersion"] = str(version)
    return changed


class FakeWatch(Generic[T]):
    """A stream of events that ends at its timeout, or when a test ends it.

    `closes` counts how often the client closed it.
    """

    def __init__(self, source: FakeSource[T], options: WatchOptions) -> None:
        loop = asyncio.get_running_loop()
        self.options = options
        self.closes = 0
        self._source = source
        self._pending: deque[WatchEvent[T]] = deque()
        self._news = asyncio.Event()
        self._ended = False
        self._error: KubeError | None = None
        self._stalled = False
        self._timers: list[asyncio.TimerHandle] = []
        if options.timeout_seconds:
            self._timers.append(loop.call_later(options.timeout_seconds, self.end))
        self._schedule_bookmark()

    def __repr__(self) -> str:
        state = "closed" if self.closes else "ended" if self._ended else "open"
        return f"<FakeWatch {state}: {len(self._pending)} pending>"

    # The client's side

    async def read(self) -> list[WatchEvent[T]]:
        """Return the pending events, waiting for one; an empty list is the end."""
        while self._stalled or not (self._pending or self._ended):
            self._news.clear()
            await self._news.wait()
        if not self._pending:
            if self._error is not None:
                raise self._error
            return []
        count = min(self._source.batch or len(self._pending), len(self._pending))
        return [self._pending.popleft() for _ in range(count)]

    async def close(self) -> None:
        """Free everything."""
        self.closes += 1
        self._ended = True
        self._pending.clear()
        for timer in self._timers:
            timer.cancel()

    # The server's side

    def offer(self, entry: LogEntry) -> None:
        """Deliver a change, as far as the watch's selectors let it see it."""
        event = event_for(entry, self.options)
        if event is not None:
            kind, obj = event
            self.push(WatchEvent(kind, self._source.represent(obj)))

    def push(self, event: WatchEvent[Any]) -> None:
        """Deliver an event; an ended watch takes none."""
        if not self._ended:
            self._pending.append(event)
            self._news.set()

    def bookmark(self, *, ends_initial: bool = False) -> None:
        """Deliver a bookmark at the server's present version."""
        annotations = {INITIAL_EVENTS_END: "true"} if ends_initial else None
        metadata = ObjectMeta(resource_version=str(self._source.version), annotations=annotations)
        self.push(WatchEvent(BOOKMARK, PartialObjectMetadata(metadata=metadata)))

    def end(self, error: KubeError | None = None, *, lose_pending: bool = False) -> None:
        """End the stream, after what is pending or at once."""
        if self._ended:
            return
        if lose_pending:
            self._pending.clear()
        self._ended, self._error = True, error
        self._news.set()

    def stall(self, *, stall: bool = True) -> None:
        """Deliver nothing and do not end, or go on."""
        self._stalled = stall
        self._news.set()

    def _schedule_bookmark(self) -> None:
        if self.options.allow_bookmarks and self._source.bookmark_every and not self._ended:
            loop = asyncio.get_running_loop()
            timer = loop.call_later(self._source.bookmark_every, self._periodic_bookmark)
            self._timers = [*self._timers[:1], timer]

    def _periodic_bookmark(self) -> None:
        self.bookmark()
        self._schedule_bookmark()
