"""The streaming list: a watch that first sends every object there is, then a bookmark, then lives on.

Nothing is visible before the bookmark that ends the initial events; then everything at once, and
the same connection goes on as the live watch.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from typing import TYPE_CHECKING, Generic, TypeVar

from kubeloop.informer.ingest import BookmarkSeen, ErrorSeen, Ingest
from kubeloop.informer.stream_guard import StreamGuard
from kubeloop.objects.options import ListOptions, WatchOptions

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kubeloop.informer.options import ReflectorOptions
    from kubeloop.informer.snapshot import Snapshot
    from kubeloop.informer.source import ListWatch, WatchStream
    from kubeloop.objects.events import WatchEvent
    from kubeloop.objects.names import Key

T = TypeVar("T")

WARN_EVERY = 10.0
_log = logging.getLogger(__name__)


class StreamCutShort(Exception):
    """The stream ended before its initial events did.

    `timed_out`: at the end of its time. Such a server sends events, but no bookmark to end them: it
    does not know what it was asked for.
    """

    def __init__(self, events: int, seconds: float, timeout: float) -> None:
        super().__init__(f"stream ended after {events} initial events and {seconds:.1f} s")
        self.very_short = events == 0 and seconds < 1.0
        self.timed_out = seconds >= timeout


class InconsistentWatchList(Exception):
    """The self-check: a streamed list and a list at the same version are not the same."""


@dataclasses.dataclass(frozen=True, slots=True)
class OpenStream(Generic[T]):
    """A live watch: the events already read but not looked at, and how long silence may last."""

    stream: WatchStream[T]
    unread: Iterator[WatchEvent[T]]
    silence: float


class LateBookmarkWarning:
    """Warns every ten seconds in which the end bookmark is missing and no event came."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._began = self._heard_at = self._loop.time()
        self._timer = self._loop.call_later(WARN_EVERY, self._fire)

    @property
    def age(self) -> float:
        """Seconds since the stream was opened."""
        return self._loop.time() - self._began

    def heard(self) -> None:
        """Note that events came."""
        self._heard_at = self._loop.time()

    def cancel(self) -> None:
        """Warn no more."""
        self._timer.cancel()

    def _fire(self) -> None:
        now = self._loop.time()
        if now - self._heard_at >= WARN_EVERY:
            _log.warning(
                "no event for %.0f s, and the bookmark that ends the initial events has not come"
                " in %.0f s; is there a watch cache behind this resource?",
                *(now - self._heard_at, self.age),
            )
        self._timer = self._loop.call_later(WARN_EVERY, self._fire)


class WatchList(Generic[T]):
    """Opens streaming lists for one reflector."""

    def __init__(self, source: ListWatch[T], options: ReflectorOptions) -> None:
        self._source = source
        self._options = options

    async def stream_into(
        self, snapshot: Snapshot[T], ingest: Ingest[T], version: str
    ) -> OpenStream[T]:
        """Fill the snapshot and return the stream, live; `ingest.version` is then the list's.

        Raises KubeError, StreamCutShort, or SilentWatch; the stream is closed then.
        """
        request = self._request(version)
        stream = await self._source.watch(request)
        silence = request.timeout_seconds + self._options.silence_grace
        try:
            unread = await self._initial_events(stream, snapshot, ingest, request.timeout_seconds)
            if self._options.self_check:
                await self._check(snapshot, ingest.version)
        except BaseException:
            await stream.close()
            raise
        return OpenStream(stream, unread, silence)

    def _request(self, version: str) -> WatchOptions:
        return WatchOptions(
            label_selector=self._options.label_selector,
            field_selector=self._options.field_selector,
            resource_version=version,
            resource_version_match="NotOlderThan",
            timeout_seconds=self._options.watch_timeout(),
            send_initial_events=True,
        )

    async def _initial_events(
        self, stream: WatchStream[T], snapshot: Snapshot[T], ingest: Ingest[T], timeout: float
    ) -> Iterator[WatchEvent[T]]:
        """Read up to the end bookmark; returns what was read past it."""
        warning = LateBookmarkWarning()
        try:
            async with StreamGuard(silence=timeout + self._options.silence_grace) as guard:
                while batch := await stream.read():
                    guard.heard()
                    warning.heard()
                    events = iter(batch)
                    if _read_initial(events, snapshot, ingest):
                        return events
        finally:
            warning.cancel()
        raise StreamCutShort(ingest.accepted, warning.age, timeout)

    async def _check(self, snapshot: Snapshot[T], version: str) -> None:
        page = await self._source.list(
            ListOptions(
                label_selector=self._options.label_selector,
                field_selector=self._options.field_selector,
                resource_version=version,
                resource_version_match="Exact",
            )
        )
        listed = snapshot.empty_copy()
        await listed.take(page.items)
        if listed.items != snapshot.items:
            raise InconsistentWatchList(_difference(snapshot.items, listed.items, version))


def _read_initial(
    events: Iterator[WatchEvent[T]], snapshot: Snapshot[T], ingest: Ingest[T]
) -> bool:
    while True:
        changes, special = ingest.read(events)
        snapshot.apply(changes)
        match special:
            case ErrorSeen():
                raise special.error
            case BookmarkSeen(ends_initial=True):
                return True
            case BookmarkSeen():
                continue
            case None:
                return False


def _difference(streamed: dict[Key, T], listed: dict[Key, T], version: str) -> str:
    keys = sorted(
        key for key in streamed.keys() | listed.keys() if streamed.get(key) != listed.get(key)
    )
    return f"at version {version} stream and list differ in {len(keys)} objects: {keys[:10]}"
