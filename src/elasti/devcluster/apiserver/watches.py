"""Watches: a stream of changes from a version on, with selectors, bookmarks and initial events.

A watcher is a cursor in the resource's log. What an event is depends on the watcher: an object that
begins to match its selector is ADDED, one that ceases is DELETED. Everything published while the
client was being written to goes out in one piece. A watcher that falls out of the window is ended;
its client comes back with its last version and learns there that it is too old.
"""

from __future__ import annotations

import asyncio
import dataclasses
import random
from typing import TYPE_CHECKING

import msgspec

from elasti.devcluster.apiserver import status
from elasti.devcluster.apiserver.eventlog import FellBehind
from elasti.devcluster.apiserver.lists import bad_match, read_version, selection, whole_number
from elasti.devcluster.apiserver.request import flag

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from elasti.devcluster.apiserver.calls import Call
    from elasti.devcluster.apiserver.eventlog import Change, Cursor
    from elasti.devcluster.apiserver.representation import Presenter
    from elasti.devcluster.apiserver.selectors import Selection
    from elasti.devcluster.apiserver.storage import Collection, Store

_BOOKMARK_PERIOD = 60.0
_BOOKMARK_EARLY = 2.0
_SHORTEST, _LONGEST = 1800.0, 3600.0
_BATCH = 256


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WatchRequest:
    """What a watch asks for. `start` None means: begin with what there is."""

    start: int | None
    initial: bool
    end_of_initial: bool
    bookmarks: bool
    seconds: float
    selection: Selection


def read_watch(call: Call, current: int) -> WatchRequest:
    """Read a watch's parameters; 422 for combinations that have no meaning."""
    asked = read_version(call)
    send = call.query.get("sendInitialEvents")
    match = call.query.get("resourceVersionMatch", "")
    bookmarks = flag(call.query, "allowWatchBookmarks")
    if send is None and match:
        raise bad_match(
            status.forbidden(
                "resourceVersionMatch",
                "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided",
            )
        )
    if send is not None and match != "NotOlderThan":
        raise bad_match(
            status.forbidden(
                "resourceVersionMatch",
                "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan",
            )
        )
    if asked is not None and asked > current:
        raise status.too_large(asked, current)
    wants_initial = flag(call.query, "sendInitialEvents") if send is not None else not asked
    seconds = float(whole_number(call, "timeoutSeconds")) or random.uniform(_SHORTEST, _LONGEST)
    return WatchRequest(
        start=None if wants_initial or not asked else asked,
        initial=wants_initial,
        end_of_initial=send is not None and wants_initial and bookmarks,
        bookmarks=bookmarks,
        seconds=seconds,
        selection=selection(call),
    )


class Watch:
    """One running watch; `batches` are bytes to send as they are."""

    def __init__(
        self, *, store: Store, collection: Collection, request: WatchRequest, presenter: Presenter
    ) -> None:
        self._store = store
        self._collection = collection
        self._request = request
        self._presenter = presenter
        self._initial = (
            list(collection.scan(request.selection.namespace)) if request.initial else []
        )
        self._version = store.version
        self._cursor = self._open()

    def _open(self) -> Cursor | None:
        """Return the place to begin at; None where the history does not reach back that far."""
        start = self._request.start
        try:
            return self._collection.log.cursor(self._version if start is None else start)
        except FellBehind:
            return None

    async def batches(self, stop: asyncio.Event) -> AsyncGenerator[bytes, None]:
        """Yield what to send until the watch's time is over, or it is told to stop."""
        cursor = self._cursor
        if cursor is None:
            oldest = self._collection.log.compacted
            yield error_line(status.too_old(self._request.start or 0, oldest))
            return
        loop = asyncio.get_running_loop()
        end = loop.time() + self._request.seconds
        for lines in self._first_lines():
            yield lines
        bookmark_at = self._next_bookmark(loop.time(), end)
        while not stop.is_set():
            try:
                changes = cursor.take()
            except FellBehind:
                return
            if lines := b"".join(filter(None, map(self._line, changes))):
                yield lines
                continue
            now = loop.time()
            if now >= end:
                return
            if self._request.bookmarks and now >= bookmark_at:
                yield self._bookmark()
                bookmark_at = self._next_bookmark(now, end)
            await _changed(cursor, min(end, bookmark_at if self._request.bookmarks else end))

    def _next_bookmark(self, now: float, end: float) -> float:
        """About once a minute, and once shortly before the end."""
        regular, last = now + _BOOKMARK_PERIOD, end - _BOOKMARK_EARLY
        return last if now < last < regular else regular

    def _first_lines(self) -> list[bytes]:
        """Return the synthetic events of what exists, in pieces."""
        request, pieces, piece = self._request, [], []
        for record in self._initial:
            if request.selection.covers(record):
                piece.append(b'{"type":"ADDED","object":%b}\n' % self._presenter.record(record))
            if len(piece) >= _BATCH:
                pieces.append(b"".join(piece))
                piece = []
        if request.end_of_initial:
            end = self._presenter.bookmark(self._version, initial=True)
            piece.append(b'{"type":"BOOKMARK","object":%b}\n' % end)
        self._initial = []
        return [*pieces, b"".join(piece)] if piece else pieces

    def _line(self, change: Change) -> bytes | None:
        kind = self._kind(change)
        if kind is None:
            return None
        return change.line(kind, self._presenter.form, self._presenter.record)

    def _kind(self, change: Change) -> str | None:
        covers = self._request.selection.covers
        before = change.previous is not None and covers(change.previous)
        after = not change.deleted and covers(change.record)
        if after:
            return "MODIFIED" if before else "ADDED"
        return "DELETED" if before else None

    def _bookmark(self) -> bytes:
        line = self._presenter.bookmark(self._store.version)
        return b'{"type":"BOOKMARK","object":%b}\n' % line


async def _changed(cursor: Cursor, until: float) -> None:
    try:
        async with asyncio.timeout_at(until):
            await cursor.changed()
    except TimeoutError:
        pass


def error_line(refusal: status.StatusError) -> bytes:
    """Return the event that ends a watch with a refusal."""
    return b'{"type":"ERROR","object":%b}\n' % msgspec.json.encode(refusal.status)
