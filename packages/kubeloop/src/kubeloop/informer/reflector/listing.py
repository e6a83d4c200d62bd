"""A complete list, in pages or as a streaming list; nothing of it is visible before it is complete.

`Snapshot` holds the objects while they arrive; they are prepared as they come, so that a page can
be dropped once it is taken in.

`ListPager` lists in as many requests as it takes. Which version to ask for, and whether in pages,
follows client-go. The first list asks for version "0": whatever the watch cache has. A later one
asks for what was last seen, without a limit, so that it comes from the watch cache and cannot go
back in time. When the server does not have that version (too old, or not seen yet), a consistent
read is the last resort, until one succeeds.

`WatchList` opens a watch that first sends every object there is, then a bookmark; then the same
connection goes on as the live watch.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from typing import TYPE_CHECKING, Generic, TypeVar

from kubeloop.aio.tasks import TimeBudget
from kubeloop.client.errors import Gone, KubeError, ProtocolError, is_version_too_large
from kubeloop.informer.reflector.events import (
    BookmarkSeen,
    Delta,
    ErrorSeen,
    EventReader,
    ObjectPreparer,
    Rejected,
)
from kubeloop.informer.reflector.timers import StreamGuard
from kubeloop.objects.list_watch import ListOptions, WatchEvent, WatchOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sized

    from kubeloop.informer.metrics import InformerMetrics
    from kubeloop.informer.reflector.source import ListWatch, ReflectorOptions, WatchStream
    from kubeloop.objects.meta import Key


T = TypeVar("T")

_log = logging.getLogger(__name__)


DEFAULT_PAGE = 500
WARN_EVERY = 10.0
_EMPTY_PAGES = 10


class Snapshot(Generic[T]):
    """Objects by key; of two with one key the later wins.

    An object that cannot be prepared fails the whole list (`Rejected`), because a list without it
    would delete it; with `skip_rejected` it is left out, logged and counted.
    """

    def __init__(
        self, preparer: ObjectPreparer[T], *, metrics: InformerMetrics, skip_rejected: bool = False
    ) -> None:
        self.items: dict[Key, T] = {}
        self._preparer = preparer
        self._metrics = metrics
        self._skip_rejected = skip_rejected

    async def take(self, objects: Iterable[T]) -> None:
        """Take in the objects of a page, resting now and then."""
        budget = TimeBudget(items=250)
        for obj in objects:
            self._take_one(obj)
            if budget.spent():
                await budget.rest()

    def apply(self, changes: Iterable[Delta[T]]) -> None:
        """Take in changes of a stream."""
        for change in changes:
            if change.deleted:
                self.items.pop(change.key, None)
            else:
                self.items[change.key] = change.obj

    def empty_copy(self) -> Snapshot[T]:
        """Return a snapshot of the same kind without objects."""
        return Snapshot(self._preparer, metrics=self._metrics, skip_rejected=self._skip_rejected)

    def clear(self) -> None:
        """Forget everything; the list begins again."""
        self.items = {}

    def _take_one(self, obj: T) -> None:
        try:
            change = self._preparer.add(obj)
        except Rejected as error:
            self._metrics.rejected(reason=error.reason)
            if not self._skip_rejected:
                raise
            _log.warning("list item left out: %s", error)
        else:
            self.items[change.key] = change.obj


class SuddenlyEmpty(Exception):
    """A list without objects, of which there were some; it is not believed yet."""

    def __init__(self, known: int, seconds: float) -> None:
        super().__init__(
            f"the server lists nothing, and there were {known} objects; they are kept"
            f" for {seconds:.0f} s more unless it lists some again"
        )


class EmptyListDistrust:
    """Believes a list without objects only after `seconds`, if the store has objects; 0 believes at once."""

    def __init__(self, known: Callable[[], int], *, seconds: float) -> None:
        self._known = known
        self._seconds = seconds
        self._since: float | None = None

    def doubt(self, listed: Sized) -> SuddenlyEmpty | None:
        """Return why a complete list is not believed; None if it is."""
        known = self._known()
        if listed or not known or not self._seconds:
            self._since = None
            return None
        now = asyncio.get_running_loop().time()
        if self._since is None:
            self._since = now
        left = self._since + self._seconds - now
        return SuddenlyEmpty(known, left) if left > 0 else None


def is_unavailable(error: KubeError) -> bool:
    """Whether the server says that it does not have the version asked for."""
    return isinstance(error, Gone) or is_version_too_large(error)


class ListPager(Generic[T]):
    """Lists for one reflector and remembers how its server takes it."""

    def __init__(self, source: ListWatch[T], options: ReflectorOptions) -> None:
        self._source = source
        self._options = options
        self._server_pages = False
        self.version_unavailable = False

    def relist_version(self, last: str) -> str:
        """Return the version to list at, when `last` was seen last."""
        return "" if self.version_unavailable else last or "0"

    async def list_into(
        self, snapshot: Snapshot[T], last: str, *, on_answer: Callable[[], None] | None = None
    ) -> str:
        """Fill the snapshot with everything there is; returns the list's version.

        `on_answer` is called when the server begins to answer, once for each page or less.
        Raises KubeError, and Rejected for an object that cannot be taken in.
        """
        wanted = self.relist_version(last)
        first = ListOptions(
            label_selector=self._options.label_selector,
            field_selector=self._options.field_selector,
            resource_version=wanted,
            limit=self._limit(wanted),
            on_answer=on_answer,
        )
        try:
            version, paged = await self._pages(snapshot, first)
        except KubeError as error:
            if not is_unavailable(error):
                raise
            self.version_unavailable = True
            snapshot.clear()
            consistent = dataclasses.replace(first, resource_version="")
            version, paged = await self._pages(snapshot, consistent)
        if wanted == "0" and paged:
            # A server that cuts this list into pages has no watch cache to answer from.
            self._server_pages = True
        self.version_unavailable = False
        return version

    def _limit(self, version: str) -> int:
        if self._options.page_size:
            return self._options.page_size
        if self._server_pages or version in {"", "0"}:
            return DEFAULT_PAGE
        return 0

    async def _pages(self, snapshot: Snapshot[T], first: ListOptions) -> tuple[str, bool]:
        page = await self._source.list(first)
        list_version, paged = page.resource_version, bool(page.continue_token)
        await snapshot.take(page.items)
        empty = 0
        while token := page.continue_token:
            empty = 0 if page.items else empty + 1
            if empty > _EMPTY_PAGES:
                raise ProtocolError(
                    f"{empty} pages of the list in a row hold no object and a continue token;"
                    " the server would be asked indefinitely"
                )
            # A continuation that names a version is refused: the token has it.
            following = dataclasses.replace(first, resource_version="", continue_token=token)
            try:
                page = await self._source.list(following)
            except Gone:
                snapshot.clear()
                page = await self._source.list(dataclasses.replace(first, limit=0))
                list_version = page.resource_version
            await snapshot.take(page.items)
        return list_version, paged


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
        """Cancel the warning."""
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
        self,
        snapshot: Snapshot[T],
        reader: EventReader[T],
        version: str,
        *,
        on_events: Callable[[], None] | None = None,
    ) -> OpenStream[T]:
        """Fill the snapshot and return the stream, live; `reader.version` is then the list's.

        `on_events` is called after each read that brought objects and did not end them.
        Raises KubeError, StreamCutShort, or SilentWatch; the stream is closed then.
        """
        request = self._request(version)
        stream = await self._source.watch(request)
        silence = request.timeout_seconds + self._options.silence_grace
        try:
            unread = await self._initial_events(
                stream, snapshot, reader, request.timeout_seconds, on_events
            )
            if self._options.self_check:
                await self._check(snapshot, reader.version)
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
        self,
        stream: WatchStream[T],
        snapshot: Snapshot[T],
        reader: EventReader[T],
        timeout: float,
        on_events: Callable[[], None] | None,
    ) -> Iterator[WatchEvent[T]]:
        """Read up to the end bookmark; returns what was read past it."""
        warning = LateBookmarkWarning()
        try:
            async with StreamGuard(silence=timeout + self._options.silence_grace) as guard:
                while batch := await stream.read():
                    guard.heard()
                    warning.heard()
                    events = iter(batch)
                    if _read_initial(events, snapshot, reader):
                        return events
                    if on_events is not None:
                        on_events()
        finally:
            warning.cancel()
        raise StreamCutShort(reader.accepted, warning.age, timeout)

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
    events: Iterator[WatchEvent[T]], snapshot: Snapshot[T], reader: EventReader[T]
) -> bool:
    while True:
        changes, special = reader.read(events)
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
