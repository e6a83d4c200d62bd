"""Several worker processes behind one admin port: their supervisor, and their aggregated view.

Each worker binds the same ports and has its own event loop, watches and connections; the kernel divides new
connections among them (SO_REUSEPORT). The supervisor starts the workers, restarts one that died, forwards SIGTERM,
and serves the admin port with the sum of their reports, which it reads over Unix sockets. If a worker does not
answer, the whole response fails: a sum without it could hide activity.

A worker's standard input is a pipe whose other end the supervisor holds. Nothing is written to it. When it
closes, the supervisor has died, and its workers shut down.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import re
import signal
from collections.abc import Iterable, Sequence
from typing import IO
from urllib.parse import urlencode

import msgspec

from elasti.api.wire import ACTIVITY_PATH, ActivityReport, activity_query
from elasti.logger import get_logger
from elasti.resolver.metrics import Readiness
from elasti.resolver.projections import ServiceKey
from kubeloop.http.client import AnswerTooLong, HttpClient, request_bytes
from kubeloop.http.connection import Connection
from kubeloop.http.framing import FramingError

_RESTART_AFTER = 1.0

_log = get_logger(__name__)


async def until_orphaned(pipe: IO[str]) -> None:
    """Wait, as a worker, until the supervisor is gone."""
    reader = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), pipe
    )
    try:
        await reader.read()
    finally:
        transport.close()


class WorkerSupervisor:
    """Keeps one worker process running for each command."""

    def __init__(self, commands: Sequence[Sequence[str]]) -> None:
        self._commands = commands
        self.processes: dict[int, asyncio.subprocess.Process] = {}

    async def run(self, stop: asyncio.Event) -> None:
        """Run the workers until `stop` is set. Returns when the last has exited.

        If cancelled, it kills them.
        """
        try:
            async with asyncio.TaskGroup() as group:
                for number, command in enumerate(self._commands):
                    group.create_task(self._keep(number, command, stop))
                await stop.wait()
                self._signal(signal.SIGTERM)
        finally:
            await self._kill()

    async def _keep(self, number: int, command: Sequence[str], stop: asyncio.Event) -> None:
        while not stop.is_set():
            process = await asyncio.create_subprocess_exec(*command, stdin=asyncio.subprocess.PIPE)
            self.processes[number] = process
            if stop.is_set():
                # The signal came before the process was registered.
                process.terminate()
            code = await process.wait()
            del self.processes[number]
            if not stop.is_set():
                _log.error("worker ended; restarting", worker=number, code=code)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_RESTART_AFTER):
                        await stop.wait()

    def _signal(self, signum: int) -> None:
        for process in self.processes.values():
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signum)

    async def _kill(self) -> None:
        self._signal(signal.SIGKILL)
        for process in list(self.processes.values()):
            await process.wait()


_SAMPLE = re.compile(r"(?P<series>[^#\s{]+(?:\{.*\})?) (?P<value>[-+.0-9a-zA-Z]+)\Z")
# All workers see the same objects, so these are not summed.
_SAME_FOR_ALL = frozenset(
    (
        "elasti_resolver_services",
        "elasti_resolver_contested_ports_total",
        "informer_objects",
        "reflector_last_resource_version",
    )
)
# Shorter than the operator's timeout of one second.
_PATIENCE = 0.8
_MAX_ANSWER = 256 << 20


class WorkerUnreachable(Exception):
    """A worker did not answer."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Worker:
    """A worker's Unix socket."""

    path: str

    async def connect(self, connection: Connection) -> None:
        """Connect, and attach the connection. Raises OSError."""
        loop = asyncio.get_running_loop()
        await loop.create_unix_connection(lambda: connection, self.path)


class AggregateView:
    """The `AdminView` of all workers together."""

    def __init__(self, sockets: Sequence[str], *, patience: float = _PATIENCE) -> None:
        self._sockets = sockets
        self._patience = patience

    async def activity(self, key: ServiceKey, *, hold: bool | None = None) -> ActivityReport | None:
        """Sum the workers' activity. Raises WorkerUnreachable."""
        query = activity_query(*key, hold=hold)
        answers = await self._get_all(ACTIVITY_PATH, query)
        reports = [
            msgspec.json.decode(body, type=ActivityReport)
            for status, body in answers
            if status == 200
        ]
        # Caches may differ for a moment: one worker that knows the Service is enough.
        return add_reports(reports) if reports else None

    async def readiness(self) -> Readiness:
        """Return whether every worker is ready. Equal details are listed once."""
        lines: dict[str, None] = {}
        for number, path in enumerate(self._sockets):
            try:
                status, body = await self._get(path, "/readyz", {})
            except WorkerUnreachable as error:
                return Readiness(ok=False, text=f"worker {number}: {error}")
            text = body.decode(errors="replace")
            if status != 200:
                return Readiness(ok=False, text=f"worker {number}: {text}")
            lines |= dict.fromkeys(text.splitlines())
        return Readiness(ok=True, text="\n".join(lines))

    async def metrics(self) -> bytes:
        """Sum the workers' metrics. Raises WorkerUnreachable."""
        answers = await self._get_all("/metrics", {})
        return add_metrics(body.decode() for _, body in answers).encode()

    async def _get_all(self, route: str, query: dict[str, str]) -> list[tuple[int, bytes]]:
        asking = (self._get(path, route, query) for path in self._sockets)
        answers = await asyncio.gather(*asking, return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        return [answer for answer in answers if not isinstance(answer, BaseException)]

    async def _get(self, path: str, route: str, query: dict[str, str]) -> tuple[int, bytes]:
        target = f"{route}?{urlencode(query)}" if query else route
        request = request_bytes("GET", target, (("Host", "worker"), ("Connection", "close")), None)
        try:
            async with (
                HttpClient(keep=0.0) as http,
                http.exchange(_Worker(path), request, timeout=self._patience) as answer,
            ):
                return answer.status, await answer.body(limit=_MAX_ANSWER)
        except (OSError, FramingError, AnswerTooLong) as error:
            raise WorkerUnreachable(str(error) or type(error).__name__) from error


def add_reports(reports: Sequence[ActivityReport]) -> ActivityReport:
    """Sum reports; the most recent arrival counts, and the most recent start."""
    starts = [r.last_start for r in reports if r.last_start is not None]
    ages = [r.last_arrival_age for r in reports if r.last_arrival_age is not None]
    return ActivityReport(
        held=sum(report.held for report in reports),
        open=sum(report.open for report in reports),
        last_arrival_age=min(ages, default=None),
        last_start=min(starts, key=lambda start: start.age, default=None),
    )


def add_metrics(texts: Iterable[str]) -> str:
    """Sum expositions by series, and keep each metric family together."""
    families: dict[str, tuple[list[str], dict[str, float]]] = {}
    for text in texts:
        comments: list[str] = []
        series: dict[str, float] = {}
        for line in text.splitlines():
            found = _SAMPLE.match(line)
            if found is not None:
                _add(series, found["series"], float(found["value"]))
                continue
            comments, series = families.setdefault(line.split(" ", 3)[2], ([], {}))
            if line not in comments:
                comments.append(line)
    return "".join(
        f"{line}\n"
        for comments, series in families.values()
        for line in (*comments, *(f"{name} {value}" for name, value in series.items()))
    )


def _add(series: dict[str, float], name: str, value: float) -> None:
    if name.partition("{")[0] in _SAME_FOR_ALL:
        series[name] = max(series.get(name, 0.0), value)
    else:
        series[name] = series.get(name, 0.0) + value
