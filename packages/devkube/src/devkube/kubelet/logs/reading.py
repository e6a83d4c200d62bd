"""Reading a log: what a request asks for, the last lines, since a time, as it grows.

`NodeLogs` is what the API server calls: kubelets run in its process.
"""

from __future__ import annotations

import collections
import dataclasses
import datetime as dt
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from pathlib import Path

from devkube.kubelet.logs.files import LogFile, stamp_of
from devkube.kubelet.pods.worker import PodWorker
from kubeloop.objects.times import parse_time

_CHUNK = 64 * 1024


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LogOptions:
    """What to read of a log."""

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
