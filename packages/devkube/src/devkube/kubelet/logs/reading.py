"""Reading a log: what a request asks for, the last lines, since a time, as it grows.

`PodLogs` answers `pods/log` in the API server, which runs in the same process as the kubelets: which
container is meant, and which node has its log.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import datetime as dt
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TypeAlias

from aiohttp import web

from devkube.apiserver import status
from devkube.apiserver.calls import Call
from devkube.kubelet.logs.files import LogFile, stamp_of
from devkube.kubelet.pods.worker import PodWorker
from kubeloop.aio.clock import Clock
from kubeloop.objects.meta import JsonObject
from kubeloop.objects.times import parse_time

_CHUNK = 64 * 1024
FindWorker: TypeAlias = Callable[[str, str], PodWorker | None]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LogOptions:
    """The part of a log to read."""

    follow: bool = False
    previous: bool = False
    timestamps: bool = False
    tail: int | None = None
    since: dt.datetime | None = None


async def read_log(log: LogFile, options: LogOptions) -> AsyncIterator[bytes]:
    """Yield a log piece by piece; with `follow` until its container has ended."""
    position = log.path.stat().st_size
    for piece in _grouped(_selected(_lines(log.path, 0, position), options)):
        yield _shown(piece, options)
    while options.follow:
        size = log.path.stat().st_size
        if size > position:
            yield _shown(_lines(log.path, position, size), options)
            position = size
        elif log.is_closed:
            return
        else:
            await log.grown()


def _selected(entries: Iterable[bytes], options: LogOptions) -> Iterable[bytes]:
    since = b"" if options.since is None else stamp_of(options.since)
    young = (entry for entry in entries if entry >= since)
    return young if options.tail is None else collections.deque(young, maxlen=options.tail)


def _shown(entries: Iterable[bytes], options: LogOptions) -> bytes:
    timed = options.timestamps
    return b"".join(entry if timed else entry.partition(b" ")[2] for entry in entries)


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


def read_log_options(query: Mapping[str, str], *, now: dt.datetime) -> LogOptions:
    """Read the query of a log request; 400 that names the parameter."""
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
        raise status.bad_request("at most one of `sinceTime` or `sinceSeconds` may be specified")
    if seconds is not None:
        return now - dt.timedelta(seconds=seconds)
    if not text:
        return None
    try:
        return parse_time(text)
    except ValueError as error:
        raise status.bad_request(f"sinceTime: {error}") from error


def _flag(query: Mapping[str, str], name: str) -> bool:
    return query.get(name, "").lower() in ("true", "1")


def _number(query: Mapping[str, str], name: str, *, least: int) -> int | None:
    text = query.get(name, "")
    if not text:
        return None
    if not text.lstrip("-").isdecimal() or int(text) < least:
        raise status.bad_request(f"{name}: {text!r} is not a number of at least {least}")
    return int(text)


def _why_not(worker: PodWorker, container: str, options: LogOptions) -> str:
    name = worker.pod.metadata.name
    known = worker.status.container(container)
    if known is None:
        return f'container "{container}" in pod "{name}" is not available'
    if options.previous:
        return f'previous terminated container "{container}" in pod "{name}" not found'
    reason = known.state.waiting.reason if known.state.waiting is not None else ""
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
    """Answers requests for logs: `core.streams["pods", "log"] = PodLogs(...).answer`.

    `node` has the function of each node's kubelet that finds a pod's worker.
    """

    find_pod: Callable[[str, str], JsonObject | None]
    node: Callable[[str], FindWorker | None]
    clock: Clock

    async def answer(self, call: Call, request: web.BaseRequest) -> web.StreamResponse:
        """Send the log. Raises StatusError that says why not."""
        pieces = self._open(call)
        if pieces is None:
            return web.Response(body=b"", content_type="text/plain")
        return await stream_log(request, pieces)

    def _open(self, call: Call) -> AsyncIterator[bytes] | None:
        """Return the log; None for a pod that has no node yet."""
        options = read_log_options(call.query, now=self.clock.now())
        pod = self.find_pod(call.namespace, call.name)
        if pod is None:
            raise _not_found(f'pods "{call.name}" not found')
        container = choose_container(pod, call.query.get("container", ""))
        find_worker = self.node((pod.get("spec") or {}).get("nodeName", ""))
        if find_worker is None:
            return None
        worker = find_worker(call.namespace, call.name)
        if worker is None:
            raise _not_found(f'pod "{call.name}" cannot be found - no logs available')
        log = worker.log(container, previous=options.previous)
        if log is None:
            raise status.bad_request(_why_not(worker, container, options))
        return read_log(log, options)


def _not_found(text: str) -> status.StatusError:
    return status.failure(404, "NotFound", text)


def choose_container(pod: JsonObject, wanted: str) -> str:
    """Return the container that is meant; 400 if it is not clear."""
    spec, name = pod.get("spec") or {}, pod["metadata"]["name"]
    names = [c["name"] for c in spec.get("containers") or ()]
    init = [c["name"] for c in spec.get("initContainers") or ()]
    if wanted:
        if wanted not in (*names, *init):
            raise status.bad_request(f"container {wanted} is not valid for pod {name}")
        return wanted
    if len(names) == 1:
        return str(names[0])
    choice = f"choose one of: [{' '.join(names)}]"
    if init:
        choice += f" or one of the init containers: [{' '.join(init)}]"
    raise status.bad_request(f"a container name must be specified for pod {name}, {choice}")
