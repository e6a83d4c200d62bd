"""Lists and watches: pages of one consistent snapshot, then a stream of changes.

A page's token names the version of the first page and the last key given out; later pages are read
from the history at that version, so a list seen in pages is a list as it was at one moment. When
the history no longer reaches back, 410 asks the client to start again, and carries a token for
clients that would rather go on with what there is now.

A watcher is a cursor in the resource's log. What an event is depends on the watcher: an object that
begins to match its selector is ADDED, one that ceases is DELETED. Everything published while the
client was being written to goes out in one write. A watcher that falls out of the window is ended;
its client comes back with its last version and learns there that it is too old.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import dataclasses
import itertools
import random
import re
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence

import msgspec

from devkube.apiserver import status
from devkube.apiserver.calls import Call, flag
from devkube.apiserver.registry.serialization import ListMetadata, Presenter
from devkube.apiserver.storage import (
    Collection,
    Cursor,
    FellBehind,
    ObjectStore,
    StoredChange,
    StoredObject,
)
from kubeloop.objects.selectors import LabelSelector, SelectorError

_MATCH = "resourceVersionMatch"
_EXPIRED = (
    "The provided continue parameter is too old to display a consistent list result. You can start a"
    " new list without the continue parameter, or use the continue token in this response to retrieve"
    " the remainder of the results. Continuing with the provided token results in an inconsistent list"
    " - objects that were created, modified, or deleted between the time the first chunk was returned"
    " and now may show up in the list."
)
_BOOKMARK_PERIOD = 60.0
_BOOKMARK_EARLY = 2.0
_SHORTEST, _LONGEST = 1800.0, 3600.0
_BATCH = 256
_EVERYTHING = LabelSelector.everything()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ObjectSelection:
    """Which objects a list or a watch is about. An empty one selects everything."""

    namespace: str = ""
    name: str = ""
    labels: LabelSelector = _EVERYTHING
    fields: tuple[tuple[str, bool, str], ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether labels and fields restrict nothing."""
        return self.labels.is_everything and not self.fields

    def covers(self, record: StoredObject) -> bool:
        """Whether a record is selected."""
        if self.namespace and not record.key.startswith(f"{self.namespace}/"):
            return False
        if not self.labels.matches(record.labels):
            return False
        return all((_field(record, path) == value) is equal for path, equal, value in self.fields)


def _field(record: StoredObject, path: str) -> str:
    if path == "metadata.name":
        return record.name
    if path == "metadata.namespace":
        return record.namespace
    return record.fields.get(path, "")


def parse_labels(text: str) -> LabelSelector:
    """Parse a label selector; 400 for a malformed one."""
    try:
        return LabelSelector.parse(text)
    except SelectorError as error:
        raise status.bad_request(f"unable to parse requirement: {error}") from error


def parse_fields(text: str, allowed: Sequence[str]) -> tuple[tuple[str, bool, str], ...]:
    """Parse a field selector into (path, equal?, value); 400 for a field that is not selectable."""
    found = []
    for term in filter(None, re.split(r"(?<!\\),", text)):
        parts = re.match(r"([^=!]+?)\s*(==|!=|=)\s*(.*)\Z", term.strip())
        if parts is None:
            raise status.bad_request(f"invalid selector: '{text}'; can't understand '{term}'")
        path, sign, value = parts[1], parts[2], re.sub(r"\\([\\,=])", r"\1", parts[3])
        if path not in allowed:
            raise status.bad_request(_not_selectable(path, allowed))
        found.append((path, sign != "!=", value))
    return tuple(found)


def _not_selectable(path: str, allowed: Sequence[str]) -> str:
    if len(allowed) > 2:
        return f"field label not supported: {path}"
    known = ", ".join(f'"{name}"' for name in allowed)
    return f'"{path}" is not a known field selector: only {known}'


class ContinueToken(msgspec.Struct, frozen=True):
    """A continue token: the snapshot's version (-1: whatever is there now) and the last key."""

    version: int
    key: str

    def write(self) -> str:
        """Return the token as clients carry it."""
        return base64.urlsafe_b64encode(msgspec.json.encode(self)).decode()

    @classmethod
    def read(cls, text: str) -> ContinueToken:
        """Read a client's token; 400 for one that is not ours."""
        try:
            return msgspec.json.decode(base64.urlsafe_b64decode(text), type=cls)
        except (binascii.Error, msgspec.MsgspecError, ValueError) as error:
            raise status.bad_request(
                f"invalid continue token: continue key is not valid: {error}"
            ) from error


def selection(call: Call) -> ObjectSelection:
    """Return what a list, a watch or a deletion of a collection is about."""
    allowed = ("metadata.name", "metadata.namespace", *call.resource.strategy.selectable)
    fields = parse_fields(call.query.get("fieldSelector", ""), allowed)
    if call.name:
        fields = (*fields, ("metadata.name", True, call.name))
    return ObjectSelection(
        namespace=call.namespace,
        labels=parse_labels(call.query.get("labelSelector", "")),
        fields=fields,
    )


def whole_number(call: Call, name: str) -> int:
    """Read a number that may not be negative; 0 if it is not given."""
    text = call.query.get(name, "")
    if not text:
        return 0
    if not (text.isascii() and text.isdigit()) or len(text) > 18:
        raise status.bad_request(f'strconv.ParseInt: parsing "{text}": invalid syntax')
    return int(text)


def read_version(call: Call) -> int | None:
    """Read `resourceVersion`; None if it is not given."""
    text = call.query.get("resourceVersion", "")
    if not text:
        return None
    if not (text.isascii() and text.isdigit()) or len(text) > 18:
        why = (
            f'resourceVersion: Invalid value: "{text}":'
            f' strconv.ParseUint: parsing "{text}": invalid syntax'
        )
        # The real server returns 500 if its storage stumbles over it, although the sender is at
        # fault.
        if call.attributes.verb == "list":
            why = f"invalid resource version: {why}"
        raise status.bad_request(why)
    return int(text)


class CollectionLister:
    """The list verb."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def page(self, call: Call) -> tuple[list[StoredObject], ListMetadata]:
        """Return the page asked for."""
        collection = self._store.collection(call.resource.stored_in)
        limit = whole_number(call, "limit")
        token = call.query.get("continue", "")
        wanted = selection(call)
        if token:
            return self._continue(call, collection, wanted, limit, ContinueToken.read(token))
        version, records = self._first(call, collection)
        if call.query.get("resourceVersion") == "0":
            limit = 0  # a real server answers this one from its cache, in one piece
        return self._cut(records, wanted, limit, version)

    def _first(self, call: Call, collection: Collection) -> tuple[int, Iterable[StoredObject]]:
        asked, match = read_version(call), call.query.get("resourceVersionMatch", "")
        current = self._store.version
        if "sendInitialEvents" in call.query:
            raise _forbidden("is forbidden for list", "sendInitialEvents")
        if match not in ("", "Exact", "NotOlderThan"):
            raise bad_match(status.unsupported(_MATCH, match, ["Exact", "NotOlderThan", ""]))
        if match and asked is None:
            raise _forbidden("is forbidden unless resourceVersion is provided")
        if asked is not None and asked > current:
            raise status.too_large(asked, current)
        if match == "Exact":
            if not asked:
                raise _forbidden('"exact" is forbidden for resourceVersion "0"')
            if asked < collection.log.compacted:
                raise status.expired(
                    f"The resourceVersion for the provided list is too old: {asked}"
                )
            return asked, collection.at(asked).values()
        return current, collection.scan(call.namespace)

    def _continue(
        self,
        call: Call,
        collection: Collection,
        wanted: ObjectSelection,
        limit: int,
        token: ContinueToken,
    ) -> tuple[list[StoredObject], ListMetadata]:
        if read_version(call):
            raise status.bad_request(
                "specifying resource version is not allowed when using continue"
            )
        records: Iterable[StoredObject]
        if token.version < 0:
            version, records = self._store.version, collection.scan(call.namespace)
        elif token.version < collection.log.compacted or token.version > self._store.version:
            raise _expired(token)
        else:
            version, records = token.version, collection.at(token.version).values()
        later = (record for record in records if record.key > token.key)
        return self._cut(later, wanted, limit, version)

    def _cut(
        self, records: Iterable[StoredObject], wanted: ObjectSelection, limit: int, version: int
    ) -> tuple[list[StoredObject], ListMetadata]:
        found: Iterator[StoredObject] = (record for record in records if wanted.covers(record))
        if not limit:
            return list(found), ListMetadata(version=version)
        page = list(itertools.islice(found, limit))
        rest = sum(1 for _ in found)
        if not rest:
            return page, ListMetadata(version=version)
        token = ContinueToken(version, page[-1].key).write()
        # With a selector a real server does not count what remains.
        remaining = rest if wanted.is_empty else None
        return page, ListMetadata(version=version, continue_token=token, remaining=remaining)


def _expired(token: ContinueToken) -> status.StatusError:
    refusal = status.expired(_EXPIRED)
    refusal.status["metadata"] = {"continue": ContinueToken(-1, token.key).write()}
    return refusal


def _forbidden(why: str, field: str = _MATCH) -> status.StatusError:
    return bad_match(status.forbidden(field, f"{field} {why}"))


def bad_match(error: status.FieldError) -> status.StatusError:
    """422: `resourceVersionMatch` does not go with the other parameters."""
    return status.invalid_options("ListOptions", error)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WatchRequest:
    """Parameters of a watch. `start` None begins with the present objects."""

    start: int | None
    initial: bool
    end_of_initial: bool
    bookmarks: bool
    seconds: float
    selection: ObjectSelection


def read_watch(call: Call, current: int) -> WatchRequest:
    """Read a watch's parameters; 422 for combinations that have no meaning."""
    asked = read_version(call)
    send = call.query.get("sendInitialEvents")
    match = call.query.get("resourceVersionMatch", "")
    bookmarks = flag(call.query, "allowWatchBookmarks")
    if send is None and match:
        raise _forbidden("is forbidden for watch unless sendInitialEvents is provided")
    if send is not None and match != "NotOlderThan":
        text = "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"
        raise bad_match(status.forbidden(_MATCH, text))
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


@dataclasses.dataclass(eq=False, kw_only=True)
class Watch:
    """One running watch; `batches` are bytes, ready to send."""

    store: ObjectStore
    collection: Collection
    request: WatchRequest
    presenter: Presenter

    def __post_init__(self) -> None:
        self._initial = (
            list(self.collection.scan(self.request.selection.namespace))
            if self.request.initial
            else []
        )
        self._version = self.store.version
        self._cursor = self._open()

    def _open(self) -> Cursor | None:
        """Return the place to begin at; None if the history does not reach back that far."""
        start = self.request.start
        try:
            return self.collection.log.cursor(self._version if start is None else start)
        except FellBehind:
            return None

    async def batches(self, stop: asyncio.Event) -> AsyncGenerator[bytes, None]:
        """Yield what to send until the watch's time is over, or until it is stopped."""
        cursor = self._cursor
        if cursor is None:
            oldest = self.collection.log.compacted
            text = f"too old resource version: {self.request.start or 0} ({oldest})"
            refusal = msgspec.json.encode(status.expired(text).status)
            yield b'{"type":"ERROR","object":%b}\n' % refusal
            return
        loop = asyncio.get_running_loop()
        end = loop.time() + self.request.seconds
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
            if self.request.bookmarks and now >= bookmark_at:
                yield self._bookmark()
                bookmark_at = self._next_bookmark(now, end)
            await _changed(cursor, min(end, bookmark_at if self.request.bookmarks else end))

    def _next_bookmark(self, now: float, end: float) -> float:
        """About once a minute, and once shortly before the end."""
        regular, last = now + _BOOKMARK_PERIOD, end - _BOOKMARK_EARLY
        return last if now < last < regular else regular

    def _first_lines(self) -> list[bytes]:
        """Return the synthetic events of what exists, in pieces."""
        request, pieces, piece = self.request, [], []
        for record in self._initial:
            if request.selection.covers(record):
                piece.append(b'{"type":"ADDED","object":%b}\n' % self.presenter.record(record))
            if len(piece) >= _BATCH:
                pieces.append(b"".join(piece))
                piece = []
        if request.end_of_initial:
            end = self.presenter.bookmark(self._version, initial=True)
            piece.append(b'{"type":"BOOKMARK","object":%b}\n' % end)
        self._initial = []
        return [*pieces, b"".join(piece)] if piece else pieces

    def _line(self, change: StoredChange) -> bytes | None:
        kind = self._kind(change)
        if kind is None:
            return None
        return change.line(kind, self.presenter.form, self.presenter.record)

    def _kind(self, change: StoredChange) -> str | None:
        covers = self.request.selection.covers
        before = change.previous is not None and covers(change.previous)
        after = not change.deleted and covers(change.record)
        if after:
            return "MODIFIED" if before else "ADDED"
        return "DELETED" if before else None

    def _bookmark(self) -> bytes:
        line = self.presenter.bookmark(self.store.version)
        return b'{"type":"BOOKMARK","object":%b}\n' % line


async def _changed(cursor: Cursor, until: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout_at(until):
            await cursor.changed()
