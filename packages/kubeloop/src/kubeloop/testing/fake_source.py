"""An API server's side of one resource, in memory: what informers list and watch in tests.

It keeps objects, a version counter and a log of changes, and answers lists and watches as an API
server does: pages with continue tokens, versions that are too old or too new, bookmarks, streaming
lists, selectors, timeouts. Faults are injected on demand. Every request is recorded with the loop's
time, so that a test can say what was asked, when, and how often.

    source = FakeSource()
    source.create("a", labels={"app": "web"})
    informer = SharedInformer(source)
    ...
    source.drop_watches()
    assert [request.resource_version for request in source.lists] == ["0"]

Objects are dictionaries; `represent` turns each into whatever the code under test works with.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar, cast

from kubeloop.client.errors import ConnectionRefused, KubeError, Status
from kubeloop.objects.list_watch import ADDED, ERROR, ListOptions, Page, WatchEvent, WatchOptions
from kubeloop.objects.meta import DICT_ACCESS, JsonObject, Key, MetaAccess, make_key
from kubeloop.testing.fake_copies import copied
from kubeloop.testing.fake_errors import gone, status_object, too_large
from kubeloop.testing.fake_watch import FakeWatch, LogEntry, at_version, matches

T = TypeVar("T")


class Recorded(NamedTuple):
    """A request and when it came."""

    at: float
    options: Any


class _Token(NamedTuple):
    items: list[JsonObject]
    version: int
    limit: int


class FakeSource(Generic[T]):
    """One resource of a fake API server; a `ListWatch`.

    watch_cache: lists at version "0" ignore their limit, as they do in front of a watch cache.
    gone_as_event: a watch at a lost version is accepted and answered by an ERROR event; else 410.
    bookmark_every: seconds between bookmarks; 0 for none.
    latency: seconds that every request takes.
    batch: the most events that one read returns; 0 for all that are there.
    """

    def __init__(
        self,
        *,
        api_version: str = "v1",
        kind: str = "Pod",
        namespace: str = "default",
        version: int = 0,
        represent: Callable[[JsonObject], T] | None = None,
        access: MetaAccess = DICT_ACCESS,
        supports_watch_list: bool = False,
        watch_cache: bool = True,
        gone_as_event: bool = True,
        bookmark_every: float = 60.0,
        latency: float = 0.0,
        batch: int = 0,
    ) -> None:
        self.version = version
        self.objects: dict[Key, JsonObject] = {}
        self.list_requests: list[Recorded] = []
        self.watch_requests: list[Recorded] = []
        self.streams: list[FakeWatch[T]] = []
        self.supports_watch_list = supports_watch_list
        self.watch_cache = watch_cache
        self.gone_as_event = gone_as_event
        self.bookmark_every = bookmark_every
        self.latency = latency
        self.batch = batch
        self.ordered = False  # lists by namespace and name, as servers give them
        self.shuffle: Callable[[list[Any]], None] | None = None
        self._api_version = api_version
        self._kind = kind
        self._namespace = namespace
        self._represent = represent or cast("Callable[[JsonObject], T]", copied)
        self._access = access
        self._log: list[LogEntry] = []
        self._compacted = 0
        self._tokens: dict[str, _Token] = {}
        self._token_number = 0
        self._list_faults: list[Exception | None] = []
        self._watch_faults: list[Exception | None] = []
        self._refusing = False
        self._lists_flow = asyncio.Event()
        self._lists_flow.set()

    @property
    def access(self) -> MetaAccess:
        """How to read the metadata of the objects."""
        return self._access

    @property
    def lists(self) -> list[ListOptions]:
        """The list requests so far."""
        return [request.options for request in self.list_requests]

    @property
    def watches(self) -> list[WatchOptions]:
        """The watch requests so far."""
        return [request.options for request in self.watch_requests]

    @property
    def open_streams(self) -> list[FakeWatch[T]]:
        """The watches that the client has not closed."""
        return [stream for stream in self.streams if not stream.closes]

    # Changes on the server

    def create(self, name: str, *, namespace: str | None = None, **fields: Any) -> JsonObject:
        """Create an object; `labels`, `annotations` and `uid` go into its metadata."""
        return self.put(self.build(name, namespace=namespace, **fields))

    def build(self, name: str, *, namespace: str | None = None, **fields: Any) -> JsonObject:
        """Return an object as `create` would make it, without storing it."""
        place = self._namespace if namespace is None else namespace
        metadata: JsonObject = {"name": name, "uid": f"uid-{name}-{self.version + 1}"}
        if place:
            metadata["namespace"] = place
        for field in ("labels", "annotations", "uid"):
            if field in fields:
                metadata[field] = fields.pop(field)
        return {"apiVersion": self._api_version, "kind": self._kind, "metadata": metadata, **fields}

    def update(self, name: str, *, namespace: str | None = None, **fields: Any) -> JsonObject:
        """Change an object's fields; `labels` and `annotations` are replaced."""
        key = self.key(name, namespace)
        obj = copied(self.objects[key])
        for field in ("labels", "annotations"):
            if field in fields:
                obj["metadata"][field] = fields.pop(field)
        obj.update(fields)
        return self.put(obj)

    def put(self, obj: JsonObject) -> JsonObject:
        """Store an object whole, new or not, at the next version."""
        self.version += 1
        obj = at_version(obj, self.version)
        key = DICT_ACCESS.key(obj)
        self._record(LogEntry(self.version, key, self.objects.get(key), obj, obj))
        return obj

    def delete(self, name: str, *, namespace: str | None = None) -> JsonObject:
        """Delete an object; the event carries its last state at the deletion's version."""
        key = self.key(name, namespace)
        before = self.objects[key]
        self.version += 1
        last = at_version(before, self.version)
        self._record(LogEntry(self.version, key, before, None, last))
        return last

    def bump(self, by: int = 1) -> None:
        """Move the version without a change of this resource, as other resources do."""
        self.version += by

    def key(self, name: str, namespace: str | None = None) -> Key:
        """Return the key of a name in the fake's own or another namespace."""
        return make_key(self._namespace if namespace is None else namespace, name)

    def _record(self, entry: LogEntry) -> None:
        if entry.after is None:
            del self.objects[entry.key]
        else:
            self.objects[entry.key] = entry.after
        self._log.append(entry)
        for stream in self.streams:
            stream.offer(entry)

    # Faults

    def fail_lists(self, *errors: Exception | None) -> None:
        """Answer the next lists with these errors, in order; None lets one through."""
        self._list_faults += errors

    def fail_watches(self, *errors: Exception | None) -> None:
        """Answer the next watch requests with these errors, in order; None lets one through."""
        self._watch_faults += errors

    def refuse_connections(self, *, refuse: bool = True) -> None:
        """Be down: refuse every request until switched back, and break the open watches."""
        self._refusing = refuse
        if refuse:
            self.drop_watches()

    def stall_lists(self, *, stall: bool = True) -> None:
        """Never answer lists, until they are cancelled or switched back."""
        if stall:
            self._lists_flow.clear()
        else:
            self._lists_flow.set()

    def drop_watches(self, error: KubeError | None = None, *, lose_pending: bool = False) -> None:
        """End all watches: cleanly, or by an error from their reads.

        What is pending is delivered first, unless it is to be lost on the way.
        """
        for stream in self.streams:
            stream.end(error, lose_pending=lose_pending)

    def stall_watches(self, *, stall: bool = True) -> None:
        """Black-hole the open watches: they deliver nothing and do not end."""
        for stream in self.streams:
            stream.stall(stall=stall)

    def send(self, kind: str, obj: Any) -> None:
        """Put any event on all open watches, however odd."""
        for stream in self.streams:
            stream.push(WatchEvent(kind, obj))

    def send_error(self, status: Status) -> None:
        """Put an ERROR event on all open watches and end them, as a server does."""
        for stream in self.streams:
            stream.push(WatchEvent(ERROR, status_object(status)))
            stream.end()

    def send_bookmark(self) -> None:
        """Put a bookmark at the present version on all open watches."""
        for stream in self.streams:
            stream.bookmark()

    def replay(self, since: int) -> None:
        """Repeat the changes after a version on all open watches, as a confused server might."""
        for entry in self._log:
            if entry.version > since:
                for stream in self.streams:
                    stream.offer(entry)

    def compact(self, version: int | None = None) -> None:
        """Forget the changes up to a version, by default all: watches from before it are 410."""
        self._compacted = self.version if version is None else version
        self._log = [entry for entry in self._log if entry.version > self._compacted]

    def expire_tokens(self) -> None:
        """Make all continue tokens 410."""
        self._tokens.clear()

    def restore(self, version: int) -> None:
        """Go back to the state at an earlier version, as a restored backup; watches end."""
        self.objects = self._state_at(version)
        self._log = [entry for entry in self._log if entry.version <= version]
        self.version = version
        self.drop_watches(lose_pending=True)

    # ListWatch

    async def watch(self, options: WatchOptions) -> FakeWatch[T]:
        """Answer a watch request."""
        self.watch_requests.append(Recorded(asyncio.get_running_loop().time(), options))
        await self._arrive(self._watch_faults)
        wanted = options.resource_version
        self._check_not_too_large(wanted)
        from_now = options.send_initial_events or wanted in {"", "0"}
        lost = not from_now and int(wanted) < self._compacted
        if lost and not self.gone_as_event:
            raise gone(wanted)
        stream = FakeWatch(self, options)
        self.streams.append(stream)
        if lost:
            stream.push(WatchEvent(ERROR, status_object(gone(wanted).status)))
            stream.end()
        elif from_now:
            self._send_state(stream)
        else:
            for entry in self._log:
                if entry.version > int(wanted):
                    stream.offer(entry)
        return stream

    def represent(self, obj: JsonObject) -> T:
        """Return an object as the client gets it; never the stored one."""
        return self._represent(obj)

    async def _arrive(self, faults: list[Exception | None]) -> None:
        if self.latency:
            await asyncio.sleep(self.latency)
        if self._refusing:
            raise ConnectionRefused("fake server: connection refused")
        fault = faults.pop(0) if faults else None
        if fault is not None:
            raise fault

    def _send_state(self, stream: FakeWatch[T]) -> None:
        objects = [obj for obj in self.objects.values() if matches(obj, stream.options)]
        if self.shuffle is not None:
            self.shuffle(objects)
        for obj in objects:
            stream.push(WatchEvent(ADDED, self.represent(obj)))
        if stream.options.send_initial_events:
            stream.bookmark(ends_initial=True)

    def _page(self, items: list[JsonObject], version: int, limit: int) -> Page[T]:
        page, rest = (items[:limit], items[limit:]) if limit else (items, [])
        token = ""
        if rest:
            self._token_number += 1
            token = f"token-{self._token_number}"
            self._tokens[token] = _Token(rest, version, limit)
        represented = [self.represent(obj) for obj in page]
        return Page(represented, str(version), token, len(rest) if rest else None)

    def _next_page(self, token: str) -> Page[T]:
        found = self._tokens.pop(token, None)
        if found is None:
            raise gone(token)
        return self._page(found.items, found.version, found.limit)

    def _check_not_too_large(self, version: str) -> None:
        if version and int(version) > self.version:
            raise too_large(version, self.version)

    def _state_at(self, version: int) -> dict[Key, JsonObject]:
        state = dict(self.objects)
        for entry in reversed(self._log):
            if entry.version <= version:
                break
            if entry.before is None:
                state.pop(entry.key, None)
            else:
                state[entry.key] = entry.before
        return state

    # Last of all, because its name hides the builtin in the annotations that follow it.
    async def list(self, options: ListOptions) -> Page[T]:
        """Answer a list request."""
        self.list_requests.append(Recorded(asyncio.get_running_loop().time(), options))
        await self._arrive(self._list_faults)
        await self._lists_flow.wait()
        if options.continue_token:
            return self._next_page(options.continue_token)
        wanted = options.resource_version
        self._check_not_too_large(wanted)
        exact = options.resource_version_match == "Exact"
        if exact and int(wanted) < self._compacted:
            raise gone(wanted)
        state = self._state_at(int(wanted)) if exact else self.objects
        items = [obj for obj in state.values() if matches(obj, options)]
        if self.ordered:
            items.sort(key=lambda obj: (DICT_ACCESS.namespace(obj), DICT_ACCESS.name(obj)))
        limit = 0 if self.watch_cache and wanted == "0" else options.limit
        return self._page(items, int(wanted) if exact else self.version, limit)
