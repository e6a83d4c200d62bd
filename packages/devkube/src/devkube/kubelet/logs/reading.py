"""Reading a log: what a request asks for, the last lines, since a time, as it grows.

`NodeLogs` is what the API server calls: kubelets run in its process. `PodLogs` answers `pods/log` there:
which container is meant, and which node has its log.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import datetime as dt
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from pathlib import Path

from aiohttp import web

from devkube.apiserver import status
from devkube.apiserver.calls import Call
from devkube.kubelet.logs.files import LogFile, stamp_of
from devkube.kubelet.pods.worker import PodWorker
from kubeloop.aio.clock import Clock
from kubeloop.objects.meta import JsonObject
from kubeloop.objects.times import parse_time

_CHUNK = 64 * 1024
_REASONS = {400: "BadRequest", 404: "NotFound"}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LogOptions:
    """The part of a log to read."""

    follow: bool = False
    previous: bool = False
    timestamps: bool = False
    tail: int | None = None
    since: dt.datetime | None = None


class _Shape:
    """Turns entries into the bytes that a reader wants."""

    def __init__(self, options: LogOptions) -> None:
        self._options = options
        self._since = b"" if options.since is None else stamp_of(options.since)

    def wanted(self, entry: bytes) -> bool:
        """Whether an entry is young enough."""
        return entry >= self._since

    def show(self, entries: Iterable[bytes]) -> bytes:
        """Return what entries look like."""
        timed = self._options.timestamps
        return b"".join(entry if timed else entry.partition(b" ")[2] for entry in entries)


async def read_log(log: LogFile, options: LogOptions) -> AsyncIterator[bytes]:
    """Yield a log piece by piece; with `follow` until its container has ended."""
    shape = _Shape(options)
    position = log.path.stat().st_size
    for piece in _grouped(_selected(_lines(log.path, 0, position), shape, options.tail)):
        yield shape.show(piece)
    while options.follow:
        size = log.path.stat().st_size
        if size > position:
            yield shape.show(_lines(log.path, position, size))
            position = size
        elif log.is_closed:
            return
        else:
            await log.grown()


def _selected(entries: Iterable[bytes], shape: _Shape, tail: int | None) -> Iterable[bytes]:
    young = (entry for entry in entries if shape.wanted(entry))
    return young if tail is None else collections.deque(young, maxlen=tail)


def _grouped(entries: Iterable[bytes]) -> Iterator[list[bytes]]:
    group: list[bytes] = []
    size = 0
    for entry in entries:
        group.append(entry)
        size += len(entry)
        if size > _CHUNK:
            yield group
            group, size = [], 0
    if group:
        yield group


def _lines(path: Path, start: int, end: int) -> Iterator[bytes]:
    with path.open("rb") as file:
        file.seek(start)
        for line in file:
            if start >= end:
                return
            start += len(line)
            yield line


class LogError(Exception):
    """A log that cannot be read; `code` is the HTTP status that says so."""

    def __init__(self, message: str, *, code: int = 400) -> None:
        super().__init__(message)
        self.code = code


def read_log_options(query: Mapping[str, str], *, now: dt.datetime) -> LogOptions:
    """Read the query of a log request. Raises LogError that names the parameter."""
    return LogOptions(
        follow=_flag(query, "follow"),
        previous=_flag(query, "previous"),
        timestamps=_flag(query, "timestamps"),
        tail=_number(query, "tailLines", least=0),
        since=_since(query, now),
    )


def _since(query: Mapping[str, str], now: dt.datetime) -> dt.datetime | None:
    seconds = _number(query, "sinceSeconds", least=1)
    text = query.get("sinceTime", "")
    if seconds is not None and text:
        raise LogError("at most one of `sinceTime` or `sinceSeconds` may be specified")
    if seconds is not None:
        return now - dt.timedelta(seconds=seconds)
    if not text:
        return None
    try:
        return parse_time(text)
    except ValueError as error:
        raise LogError(f"sinceTime: {error}") from error


def _flag(query: Mapping[str, str], name: str) -> bool:
    return query.get(name, "").lower() in ("true", "1")


def _number(query: Mapping[str, str], name: str, *, least: int) -> int | None:
    text = query.get(name, "")
    if not text:
        return None
    if not text.lstrip("-").isdecimal() or int(text) < least:
        raise LogError(f"{name}: {text!r} is not a number of at least {least}")
    return int(text)


class NodeLogs:
    """The logs of one kubelet's pods."""

    def __init__(self, find: Callable[[str, str], PodWorker | None]) -> None:
        self._find = find

    def open(
        self, namespace: str, pod: str, container: str, options: LogOptions
    ) -> AsyncIterator[bytes]:
        """Return a log piece by piece. Raises LogError."""
        worker = self._find(namespace, pod)
        if worker is None:
            raise LogError(f'pod "{pod}" cannot be found - no logs available', code=404)
        log = worker.log(container, previous=options.previous)
        if log is None:
            raise LogError(_why_not(worker, container, options))
        return read_log(log, options)


def _why_not(worker: PodWorker, container: str, options: LogOptions) -> str:
    name = worker.pod.metadata.name
    status = worker.status.container(container)
    if status is None:
        return f'container "{container}" in pod "{name}" is not available'
    if options.previous:
        return f'previous terminated container "{container}" in pod "{name}" not found'
    reason = status.state.waiting.reason if status.state.waiting is not None else ""
    if reason:
        return f'container "{container}" in pod "{name}" is waiting to start: {reason}'
    return f'container "{container}" in pod "{name}" is waiting to start - no logs yet'


async def stream_log(request: web.BaseRequest, pieces: AsyncIterator[bytes]) -> web.StreamResponse:
    """Send a log as it comes; ends with it, or when the reader goes."""
    response = web.StreamResponse(headers={"Content-Type": "text/plain"})
    response.enable_chunked_encoding()
    await response.prepare(request)
    async with contextlib.aclosing(pieces) as opened:  # type: ignore[type-var]  # generators, all of them
        async for piece in opened:
            if piece:
                await response.write(piece)
    await response.write_eof()
    return response


@dataclasses.dataclass(eq=False, kw_only=True)
class PodLogs:
    """Answers requests for logs: `core.streams["pods", "log"] = PodLogs(...).answer`."""

    find_pod: Callable[[str, str], JsonObject | None]
    node: Callable[[str], NodeLogs | None]
    clock: Clock

    async def answer(self, call: Call, request: web.BaseRequest) -> web.StreamResponse:
        """Send the log. Raises StatusError that says why not."""
        try:
            pieces = self._open(call)
        except LogError as error:
            reason = _REASONS.get(error.code, "InternalError")
            raise status.failure(error.code, reason, str(error)) from error
        if pieces is None:
            return web.Response(body=b"", content_type="text/plain")
        return await stream_log(request, pieces)

    def _open(self, call: Call) -> AsyncIterator[bytes] | None:
        """Return the log; None for a pod that has no node yet. Raises LogError."""
        options = read_log_options(call.query, now=self.clock.now())
        pod = self.find_pod(call.namespace, call.name)
        if pod is None:
            raise LogError(f'pods "{call.name}" not found', code=404)
        container = choose_container(pod, call.query.get("container", ""))
        source = self.node((pod.get("spec") or {}).get("nodeName", ""))
        if source is None:
            return None
        return source.open(call.namespace, call.name, container, options)


def choose_container(pod: JsonObject, wanted: str) -> str:
    """Return the container that is meant. Raises LogError."""
    spec, name = pod.get("spec") or {}, pod["metadata"]["name"]
    names = [c["name"] for c in spec.get("containers") or ()]
    init = [c["name"] for c in spec.get("initContainers") or ()]
    if wanted:
        if wanted not in (*names, *init):
            raise LogError(f"container {wanted} is not valid for pod {name}")
        return wanted
    if len(names) == 1:
        return str(names[0])
    choice = f"choose one of: [{' '.join(names)}]"
    if init:
        choice += f" or one of the init containers: [{' '.join(init)}]"
    raise LogError(f"a container name must be specified for pod {name}, {choice}")
