"""The reflector: keeps a queue fed with everything that happens to one resource.

A machine with five states; each step does one thing and names the state that follows.

    Starting ──► Streaming ──► Watching ──► Watching ...        (reopened: no list, no delay)
        │            │ ▲  ╲        │
        │            ▼ │   ╲       ▼
        └───────► Listing ─╲► Resting ──► Starting | Streaming | Watching

`Starting` chooses between a streaming list and a plain one. `Listing` and `Streaming` replace
everything the queue's consumer knows. `Watching` resumes wherever the last event was; it never lists
on its own account. `Resting` is the one place where time is spent on purpose: one step of a backoff
that all failures share. All network is behind `ListWatch`; every rule has a number in docs/spec.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import Generic, TypeAlias, TypeVar

from kubeloop.aio.backoff import QuietResetBackoff
from kubeloop.client.errors import (
    BadRequest,
    ConnectionRefused,
    Gone,
    InternalError,
    Invalid,
    KubeError,
    TooManyRequests,
    TransportError,
)
from kubeloop.informer.gc_pause import GcGuard
from kubeloop.informer.metrics import InformerMetrics, NoMetrics
from kubeloop.informer.reflector.events import (
    BookmarkSeen,
    ErrorSeen,
    EventReader,
    ObjectPreparer,
    Rejected,
)
from kubeloop.informer.reflector.listing import (
    EmptyListDistrust,
    ListPager,
    OpenStream,
    Snapshot,
    StreamCutShort,
    WatchList,
    is_unavailable,
)
from kubeloop.informer.reflector.probe import SilenceProbe
from kubeloop.informer.reflector.source import ListFailed, ListWatch, ReflectorOptions, WatchFailed
from kubeloop.informer.reflector.states import (
    Listing,
    ReflectorState,
    Resting,
    Sink,
    Starting,
    Streaming,
    Watching,
)
from kubeloop.informer.reflector.timers import (
    BookmarkPatience,
    BurstLimit,
    ResyncTimer,
    RetryWindow,
    SilentWatch,
    StreamGuard,
)
from kubeloop.objects.list_watch import WatchEvent, WatchOptions

T = TypeVar("T")

VERY_SHORT = 1.0
# Watches that may be reopened without a pause, and one more each second: a server that closes every
# watch after an event would otherwise be asked as often as it can answer.
AT_ONCE = 5
INVALID_MEMORY = 600.0

_log = logging.getLogger(__name__)

ErrorHandler: TypeAlias = Callable[[Exception], None]


class RelistRequested(Exception):
    """A new list was asked for; the message says why."""


class Reflector(Generic[T]):
    """Lists and watches until cancelled.

    `last_version` is where a watch would resume. `on_error` is called for every failed list and for
    every watch that could not be opened for good; it must not block, and may itself fail.
    `on_trouble` is called for everything that makes it wait. `known` returns how many objects the
    store has.
    """

    def __init__(
        self,
        source: ListWatch[T],
        sink: Sink[T],
        *,
        name: str,
        preparer: ObjectPreparer[T] | None = None,
        options: ReflectorOptions | None = None,
        resync_period: Callable[[], float] = lambda: 0.0,
        should_resync: Callable[[], bool] = lambda: True,
        on_error: ErrorHandler | None = None,
        on_trouble: ErrorHandler = lambda _error: None,
        metrics: InformerMetrics | None = None,
        collector: GcGuard | None = None,
        known: Callable[[], int] = lambda: 0,
    ) -> None:
        self.name = name
        self.last_version = ""
        self.last_heard: float | None = None
        self._source = source
        self._sink = sink
        self._options = options or ReflectorOptions()
        self._preparer = preparer or ObjectPreparer(source.access)
        self._on_error = on_error or self._log_error
        self._on_trouble = on_trouble
        self._metrics = metrics or NoMetrics()
        self._collector = collector or GcGuard(enabled=False)
        self._pager = ListPager(source, self._options)
        self._watch_list = WatchList(source, self._options)
        self._backoff = QuietResetBackoff(
            self._options.backoff, reset_after=self._options.backoff_reset, rand=self._options.rand
        )
        self._internal_errors = RetryWindow(self._options.internal_error_window)
        self._resync = ResyncTimer(
            period=resync_period,
            should_resync=should_resync,
            resync=sink.resync,
            on_error=self.relist,
        )
        self._at_once = BurstLimit(AT_ONCE)
        self._no_streams_until = 0.0
        self._patience = BookmarkPatience(self._options.bookmark_silence)
        self._guard: StreamGuard | None = None
        self._probe = SilenceProbe(source, after=self._options.probe_after)
        self._distrust = EmptyListDistrust(known, seconds=self._options.distrust_empty)
        self._relist: RelistRequested | None = None
        self._doubt = ""

    @property
    def doubt(self) -> str:
        """Why what was learned may be out of date; empty while a watch runs as it should.

        Before the first list nothing was learned.
        """
        if self._guard is not None and not self._doubt:
            silent = self._guard.silent_for
            if self._patience.is_overdue(silent):
                return f"no byte in {silent:.0f} s"
            return self._probe.doubt(self._guard)
        return self._doubt

    def relist(self, reason: Exception) -> None:
        """Give up the current watch and list again, because what was learned so far may be lost."""
        self._relist = RelistRequested(reason)
        self._doubt = str(reason)
        if self._guard is not None:
            self._guard.interrupt(self._relist)

    async def run(self) -> None:
        """List and watch until cancelled; raises only for defects, never for a server's answer."""
        state: ReflectorState[T] = Starting()
        try:
            while True:
                state = await self._step(state)
        finally:
            self._resync.stop()

    async def _step(self, state: ReflectorState[T]) -> ReflectorState[T]:
        match state:
            case Starting():
                self._resync.stop()
                self._relist = None
                return Streaming() if self._may_stream() else Listing()
            case Streaming():
                return await self._stream_initial()
            case Listing():
                return await self._list()
            case Watching():
                self._resync.start()
                return await self._watch(state.opened)
            case Resting():
                await self._rest(state)
                return state.then

    # Listing and streaming

    def _may_stream(self) -> bool:
        wanted = self._options.watch_list and self._source.supports_watch_list
        return wanted and asyncio.get_running_loop().time() >= self._no_streams_until

    async def _list(self) -> ReflectorState[T]:
        began = asyncio.get_running_loop().time()
        snapshot = self._snapshot()
        try:
            with self._collector.loading() as load:
                version = await self._pager.list_into(
                    snapshot, self.last_version, on_answer=load.begin
                )
        except (KubeError, Rejected) as error:
            return Resting(Starting(), ListFailed(self.name, error))
        if (doubt := self._distrust.doubt(snapshot.items)) is not None:
            return Resting(Starting(), because=doubt)
        self._replace(snapshot, version, began)
        return Watching()

    async def _stream_initial(self) -> ReflectorState[T]:
        began = asyncio.get_running_loop().time()
        snapshot = self._snapshot()
        version = "" if self._pager.version_unavailable else self.last_version
        reader = self._event_reader(version="")
        try:
            with self._collector.loading() as load:
                opened = await self._watch_list.stream_into(
                    snapshot, reader, version, on_events=load.begin
                )
        except (KubeError, StreamCutShort, SilentWatch) as error:
            return self._after_failed_stream(error)
        if (doubt := self._distrust.doubt(snapshot.items)) is not None:
            await opened.stream.close()
            return Resting(Starting(), because=doubt)
        self._metrics.watch_opened()
        self._patience.seen(periodic=False)
        self._pager.version_unavailable = False
        self._replace(snapshot, reader.version, began)
        return Watching(opened)

    def _after_failed_stream(self, error: Exception) -> ReflectorState[T]:
        match error:
            case TooManyRequests():
                return Resting(Streaming(), because=error, at_least=error.retry_after or 0.0)
            case KubeError() if is_unavailable(error) and not self._pager.version_unavailable:
                self._pager.version_unavailable = True
                return Streaming()
            case KubeError() if is_unavailable(error):
                # Refused although no version was asked for: the next answer would be the same.
                return Resting(Streaming(), because=error)
            case (
                ConnectionRefused()
                | SilentWatch()
                | StreamCutShort(very_short=False, timed_out=False)
            ):
                return Resting(Streaming(), because=error)
            case TransportError():
                return Resting(Streaming(), WatchFailed(self.name, error))
            case Invalid() | BadRequest():
                # An old server; it will not learn to stream between two requests.
                self._no_streams_until = asyncio.get_running_loop().time() + INVALID_MEMORY
        _log.info("%s: cannot stream the initial objects (%s), listing them", self.name, error)
        return Listing()

    def _snapshot(self) -> Snapshot[T]:
        return Snapshot(
            self._preparer, metrics=self._metrics, skip_rejected=self._options.skip_rejected
        )

    def _replace(self, snapshot: Snapshot[T], version: str, began: float) -> None:
        self._sink.replace(snapshot.items, version)
        self.last_version = version
        self.last_heard = asyncio.get_running_loop().time()
        self._doubt = ""
        seconds = self.last_heard - began
        self._metrics.listed(items=len(snapshot.items), seconds=seconds)

    # Watching

    async def _watch(self, opened: OpenStream[T] | None) -> ReflectorState[T]:
        began = asyncio.get_running_loop().time()
        reader = self._event_reader(self.last_version)
        if opened is None:
            try:
                opened = await self._open_watch()
            except KubeError as error:
                return self._after_failed_open(error)
        else:
            reader.accepted = 1  # the initial events; such a watch is never "very short"
        try:
            await self._follow(opened, reader)
        except (KubeError, SilentWatch) as error:
            return self._after_failed_watch(error)
        except RelistRequested as error:
            _log.warning("%s: watch given up, listing again: %s", self.name, error)
            return self._ended("relist", Resting(Starting()))
        lasted = asyncio.get_running_loop().time() - began
        return self._after_closed_watch(reader.accepted, lasted)

    def _event_reader(self, version: str) -> EventReader[T]:
        return EventReader(
            preparer=self._preparer,
            version=version,
            metrics=self._metrics,
            mismatch=self._options.expected.checker(),
        )

    def _watch_request(self) -> WatchOptions:
        return WatchOptions(
            label_selector=self._options.label_selector,
            field_selector=self._options.field_selector,
            resource_version=self.last_version,
            timeout_seconds=self._options.watch_timeout(),
        )

    async def _open_watch(self) -> OpenStream[T]:
        request = self._watch_request()
        stream = await self._source.watch(request)
        self._metrics.watch_opened()
        if self._relist is None:
            self._doubt = ""
        silence = request.timeout_seconds + self._options.silence_grace
        return OpenStream(stream, iter(()), silence)

    async def _follow(self, opened: OpenStream[T], reader: EventReader[T]) -> None:
        """Feed the sink until the stream ends; raises what ended it but a clean close."""
        loop = asyncio.get_running_loop()
        stream, events = opened.stream, opened.unread
        try:
            async with (
                StreamGuard(silence=self._patience.silence(opened.silence)) as guard,
                self._probe.watching(guard, self._watch_request),
            ):
                self._guard = guard
                if self._relist is not None:
                    guard.interrupt(self._relist)
                while True:
                    self._feed(events, reader)
                    await self._sink.wait_for_room()
                    guard.heard()
                    guard.limit(self._patience.silence(opened.silence))
                    batch = await stream.read()
                    if not batch:
                        return
                    self.last_heard = loop.time()
                    events = iter(batch)
        finally:
            self._guard = None
            await stream.close()

    def _feed(self, events: Iterator[WatchEvent[T]], reader: EventReader[T]) -> None:
        while True:
            changes, special = reader.read(events)
            self._sink.put(changes)
            self.last_version = reader.version
            match special:
                case None:
                    return
                case BookmarkSeen():
                    self._patience.seen(periodic=True)
                    self._sink.bookmark(special.version)
                case ErrorSeen():
                    raise special.error

    def _after_closed_watch(self, accepted: int, lasted: float) -> ReflectorState[T]:
        if accepted == 0 and lasted < VERY_SHORT:
            _log.warning("%s: watch closed at once without an event", self.name)
            return self._ended("short", Resting(Starting()))
        if isinstance(again := self._resumed(), Starting):
            return self._ended("closed", Resting(again))
        return self._ended("closed", again)

    def _resumed(self) -> Starting | Watching[T]:
        """The state after a watch that ended while its version was still valid."""
        # Without a place to resume at, what was deleted meanwhile would never be noticed.
        return Starting() if self.last_version in {"", "0"} else Watching()

    def _after_failed_open(self, error: KubeError) -> ReflectorState[T]:
        match error:
            case TooManyRequests():
                return Resting(Watching(), because=error, at_least=error.retry_after or 0.0)
            case ConnectionRefused():
                return Resting(Watching(), because=error)
            case TransportError():
                # What was seen stays true; only the server can say that it is too old.
                return Resting(Watching(), WatchFailed(self.name, error))
            case _:
                return Resting(Starting(), WatchFailed(self.name, error))

    def _after_failed_watch(self, error: KubeError | SilentWatch) -> ReflectorState[T]:
        match error:
            case SilentWatch():
                _log.info("%s: watch considered closed: %s", self.name, error)
                self._patience.exhausted()
                return self._ended("silent", self._resumed())
            case Gone():
                _log.info("%s: watch expired at version %s", self.name, self.last_version)
                return self._ended("expired", Resting(Starting()))
            case TooManyRequests():
                again = Resting(self._resumed(), at_least=error.retry_after or 0.0)
                return self._ended("throttled", again)
            case InternalError() if self._internal_errors.failed():
                return self._ended("error", self._resumed())
            case TransportError():
                _log.info("%s: watch broken: %s", self.name, error)
                return self._ended("broken", Resting(self._resumed()))
            case _:
                _log.warning("%s: watch ended with an error: %s", self.name, error)
                return self._ended("error", Resting(Starting()))

    def _ended(self, reason: str, then: Starting | Watching[T] | Resting[T]) -> ReflectorState[T]:
        self._metrics.watch_ended(reason=reason)
        return then if isinstance(then, Resting) or self._at_once.allowed() else Resting(then)

    # Resting

    async def _rest(self, state: Resting[T]) -> None:
        if not isinstance(state.then, Watching):
            self._resync.stop()
        if (trouble := state.error or state.because) is not None:
            self._on_trouble(trouble)
            self._doubt = str(trouble)
        if state.error is not None:
            self._report(state.error)
        delay = max(self._backoff.next_delay(), state.at_least)
        if state.because is not None:
            _log.warning("%s: %s; again in %.1f s", self.name, state.because, delay)
        self._metrics.backed_off(seconds=delay)
        await asyncio.sleep(delay)

    def _report(self, error: Exception) -> None:
        try:
            self._on_error(error)
        except Exception:  # noqa: BLE001 -- a callback must not end the reflector
            _log.exception("%s: the error handler failed", self.name)

    def _log_error(self, error: Exception) -> None:
        level = logging.INFO if isinstance(error.__cause__, Gone) else logging.ERROR
        _log.log(level, "%s", error)
