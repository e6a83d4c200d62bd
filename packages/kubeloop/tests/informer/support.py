"""What the informer tests share: a scripted source, recorders, and moments of rest."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from typing import TYPE_CHECKING, Any

from kubeloop.informer.handlers import Added, Deleted, Updated
from kubeloop.informer.reflector.reflector import Reflector
from kubeloop.informer.reflector.source import ReflectorOptions
from kubeloop.informer.shared_informer import SharedInformer
from kubeloop.objects.list_watch import BOOKMARK, Page, WatchEvent
from kubeloop.objects.meta import DICT_ACCESS, ObjectMeta, PartialObjectMetadata

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from kubeloop.objects.list_watch import ListOptions, WatchOptions

# No jitter: backoffs are exactly 0.8, 1.6, 3.2 ... 30 s and watches last exactly 300 s.
# No probes: they would use up the scripts of watches.
EXACT = ReflectorOptions(rand=lambda: 0.0, watch_list=False, probe_after=0.0)
STREAMING = dataclasses.replace(EXACT, watch_list=True)


async def settle() -> None:
    """Let everything that is ready run; virtual time moves by a millisecond."""
    await asyncio.sleep(0.001)


def now() -> float:
    """Return the loop's time."""
    return asyncio.get_running_loop().time()


def pod(name: str, version: int | str = 1, **fields: Any) -> dict[str, Any]:
    """Return a pod as JSON gives it."""
    metadata = {"name": name, "namespace": "default", "resourceVersion": str(version)}
    metadata |= fields.pop("metadata", {})
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, **fields}


def added(name: str, version: int | str = 1, **fields: Any) -> WatchEvent[Any]:
    return WatchEvent("ADDED", pod(name, version, **fields))


def modified(name: str, version: int | str = 1, **fields: Any) -> WatchEvent[Any]:
    return WatchEvent("MODIFIED", pod(name, version, **fields))


def deleted(name: str, version: int | str = 1, **fields: Any) -> WatchEvent[Any]:
    return WatchEvent("DELETED", pod(name, version, **fields))


def bookmark(version: int | str, annotations: dict[str, str] | None = None) -> WatchEvent[Any]:
    meta = ObjectMeta(resource_version=str(version), annotations=annotations)
    return WatchEvent(BOOKMARK, PartialObjectMetadata(metadata=meta))


def end_bookmark(version: int | str, value: str = "true") -> WatchEvent[Any]:
    return bookmark(version, {"k8s.io/initial-events-end": value})


class ScriptedStream:
    """Delivers batches; then ends (`ends`), raises (`error`), or stays silent."""

    def __init__(self, *batches: list[WatchEvent[Any]], ends: bool = True, error=None) -> None:
        self._batches = list(batches)
        self._ends = ends
        self._error = error
        self._more = asyncio.Event()
        self.closes = 0

    def push(self, *events: WatchEvent[Any]) -> None:
        self._batches.append(list(events))
        self._more.set()

    def end(self, error: Exception | None = None) -> None:
        self._ends, self._error = True, error
        self._more.set()

    async def read(self) -> list[WatchEvent[Any]]:
        while not self._batches:
            if self._error is not None:
                raise self._error
            if self._ends:
                return []
            self._more.clear()
            await self._more.wait()
        return self._batches.pop(0)

    async def close(self) -> None:
        self.closes += 1


class ScriptedSource:
    """Answers requests from scripts: each entry is an answer, an exception, or a callable.

    An exhausted script answers lists with an empty page and watches with silence.
    """

    access = DICT_ACCESS

    def __init__(self, lists=(), watches=(), *, supports_watch_list: bool = False) -> None:
        self._lists = list(lists)
        self._watches = list(watches)
        self.supports_watch_list = supports_watch_list
        self.lists: list[ListOptions] = []
        self.watches: list[WatchOptions] = []
        self.watch_times: list[float] = []
        self.list_times: list[float] = []
        self.streams: list[ScriptedStream] = []

    @property
    def list_versions(self) -> list[str]:
        return [options.resource_version for options in self.lists]

    @property
    def watch_versions(self) -> list[str]:
        return [options.resource_version for options in self.watches]

    async def list(self, options: ListOptions) -> Page[Any]:
        self.lists.append(options)
        self.list_times.append(now())
        answer = self._lists.pop(0) if self._lists else Page([], "1")
        return await self._answer(answer, options)

    async def watch(self, options: WatchOptions) -> ScriptedStream:
        self.watches.append(options)
        self.watch_times.append(now())
        answer = self._watches.pop(0) if self._watches else ScriptedStream(ends=False)
        stream = await self._answer(answer, options)
        self.streams.append(stream)
        return stream

    @staticmethod
    async def _answer(answer: Any, options: Any) -> Any:
        if callable(answer):
            answer = answer(options)
            if asyncio.iscoroutine(answer):
                answer = await answer
        if isinstance(answer, BaseException):
            raise answer
        return answer


class RecordingSink:
    """Records what a reflector learns, as short tuples."""

    def __init__(self) -> None:
        self.log: list[tuple[Any, ...]] = []
        self.items: dict[str, Any] = {}
        self.resyncs: list[float] = []
        self.on_resync: Callable[[], None] = lambda: None

    def put(self, items):
        for change in items:
            self.log.append(("delete" if change.deleted else "put", change.key, change.version))
            if change.deleted:
                self.items.pop(change.key, None)
            else:
                self.items[change.key] = change.obj

    def replace(self, items, version):
        self.log.append(("replace", sorted(items), version))
        self.items = dict(items)

    def bookmark(self, version):
        self.log.append(("bookmark", version))

    def resync(self):
        self.resyncs.append(now())
        self.on_resync()

    async def wait_for_room(self):
        pass


@contextlib.asynccontextmanager
async def reflecting(source, *, options=EXACT, **arguments: Any) -> AsyncIterator[Any]:
    """Run a reflector; yields (reflector, sink). A crash of it is raised at the end."""
    sink = RecordingSink()
    reflector = Reflector(source, sink, name="pods", options=options, **arguments)
    task = asyncio.create_task(reflector.run())
    try:
        yield reflector, sink
    finally:
        task.cancel()
        await asyncio.wait({task})
        if not task.cancelled() and (crash := task.exception()) is not None:
            raise crash


class FakeControl:
    """The collector's switches, noting each call."""

    def __init__(self, *, enabled: bool = True) -> None:
        self.enabled = enabled
        self.calls: list[str] = []

    def isenabled(self) -> bool:
        return self.enabled

    def enable(self) -> None:
        self.enabled = True
        self.calls.append("enable")

    def disable(self) -> None:
        self.enabled = False
        self.calls.append("disable")

    def collect(self) -> int:
        self.calls.append("collect")
        return 0

    def freeze(self) -> None:
        self.calls.append("freeze")

    def unfreeze(self) -> None:
        self.calls.append("unfreeze")


class RecordingMetrics:
    """An InformerMetrics that keeps every call."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, dict[str, Any]]] = []

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda **values: self.calls.append((name, values))

    def values(self, name: str, key: str) -> list[Any]:
        return [values[key] for call, values in self.calls if call == name]


class Recorder:
    """A handler that keeps what it is told and checks that it chains (I17).

    A handler's exceptions stay in the informer, so mistakes are raised by whoever looks.
    """

    def __init__(self) -> None:
        self._notes: list[Any] = []
        self._state: dict[str, Any] = {}
        self._mistakes: list[str] = []
        self.initial = 0
        self.times: list[float] = []

    def __call__(self, note: Any) -> None:
        self._notes.append(note)
        self.times.append(now())
        before = self._state.get(note.key)
        match note:
            case Added():
                self._expect(before is None, f"{note.key} added twice")
                self.initial += note.initial
                self._state[note.key] = note.obj
            case Updated():
                # The same version: a repeat of it may have been kept from this handler.
                self._expect(before == note.old, f"{note.key} does not chain")
                self._state[note.key] = note.new
            case Deleted():
                self._expect(before is not None, f"{note.key} deleted but never added")
                self._state.pop(note.key, None)

    def _expect(self, holds: bool, mistake: str) -> None:
        if not holds:
            self._mistakes.append(mistake)

    @property
    def notes(self) -> list[Any]:
        assert not self._mistakes, self._mistakes
        return self._notes

    @property
    def state(self) -> dict[str, Any]:
        assert not self._mistakes, self._mistakes
        return self._state

    @property
    def brief(self) -> list[tuple[Any, ...]]:
        """The notifications as ("add", name, version), ("update", name, old, new), ..."""
        return [_brief(note) for note in self.notes]

    def clear(self) -> None:
        self._notes.clear()
        self.times.clear()


def _brief(note: Any) -> tuple[Any, ...]:
    name = note.key.rpartition("/")[2]
    version = DICT_ACCESS.version
    match note:
        case Added():
            return ("initial" if note.initial else "add", name, version(note.obj))
        case Updated():
            return ("update", name, version(note.old), version(note.new))
        case _:
            return ("stale" if note.stale else "delete", name, version(note.obj))


def make_informer(source, *, options=EXACT, **arguments: Any) -> SharedInformer[Any]:
    """Return an informer without jitter."""
    return SharedInformer(source, name="pods", options=options, **arguments)


@contextlib.asynccontextmanager
async def informing(source, **arguments: Any) -> AsyncIterator[Any]:
    """Run an informer with one recorder until synced; yields (informer, recorder)."""
    informer = make_informer(source, **arguments)
    recorder = Recorder()
    informer.add_handler(on_event=recorder, name="recorder")
    async with informer.running():
        await settle()
        yield informer, recorder


def versions(store) -> dict[str, str]:
    """Return {name: version} of a store's objects."""
    return {DICT_ACCESS.name(obj): DICT_ACCESS.version(obj) for obj in store.list()}
