"""Several worker processes behind one admin port: their supervisor, and their aggregated view.

Each worker binds the same ports and has an event loop, watches and connections of its own; the kernel
divides new connections among them (SO_REUSEPORT). The supervisor starts them, restarts one that died,
passes on SIGTERM, and answers the admin port with the sum of what they report over their Unix sockets.
A worker that does not answer makes the whole answer fail: a sum without it would say that nothing is going
on where something may be.

Workers hold the reading end of a pipe, their standard input, of which the supervisor holds the other.
Nothing is written into it; at its end the supervisor has died, and its workers shut down, too.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import signal
from typing import IO, TYPE_CHECKING

import aiohttp
import msgspec
import structlog

from elasti.api.wire import ACTIVITY_PATH, ActivityReport, activity_query
from elasti.resolver.metrics import Readiness

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from elasti.resolver.projections import ServiceKey


_RESTART_AFTER = 1.0

_log = structlog.get_logger(__name__)


async def until_orphaned(pipe: IO[str]) -> None:
    """Wait, as a worker, until there is no supervisor any more."""
    reader = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), pipe
    )
    try:
        await reader.read()
    finally:
        transport.close()


class WorkerSupervisor:
    """Keeps worker processes alive: one for each command."""

    def __init__(self, commands: Sequence[Sequence[str]]) -> None:
        self._commands = commands
        self.processes: dict[int, asyncio.subprocess.Process] = {}

    async def run(self, stop: asyncio.Event) -> None:
        """Run the workers until `stop` is set; returns when the last has ended.

        A cancelled supervisor kills them.
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
                # The signal came before the process was known.
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
# All workers see the same objects, not more of them.
_SAME_FOR_ALL = frozenset(
    ("elasti_resolver_services", "informer_objects", "reflector_last_resource_version")
)
# Shorter than the second for which an operator waits.
_PATIENCE = 0.8


class WorkerUnreachable(Exception):
    """A worker did not answer."""


class AggregateView:
    """The view of all workers; an `AdminView`."""

    def __init__(self, sockets: Sequence[str], *, patience: float = _PATIENCE) -> None:
        self._sockets = sockets
        self._timeout = aiohttp.ClientTimeout(total=patience)

    async def activity(self, key: ServiceKey, *, hold: bool | None = None) -> ActivityReport | None:
        """Add up what the workers see. Raises WorkerUnreachable."""
        query = activity_query(*key, hold=hold)
        answers = await self._get_all(ACTIVITY_PATH, query)
        reports = [
            msgspec.json.decode(body, type=ActivityReport)
            for status, body in answers
            if status == 200
        ]
        # Caches may differ for a moment: it is there if one worker knows it.
        return add_reports(reports) if reports else None

    async def readiness(self) -> Readiness:
        """Return whether every worker is ready; what one of them doubts is reported once."""
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
        """Add up the workers' metrics. Raises WorkerUnreachable."""
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
        connector = aiohttp.UnixConnector(path, force_close=True)
        try:
            async with aiohttp.ClientSession(connector=connector, timeout=self._timeout) as session:
                async with session.get(f"http://worker{route}", params=query) as answer:
                    return answer.status, await answer.read()
        except (OSError, aiohttp.ClientError, TimeoutError) as error:
            raise WorkerUnreachable(str(error) or type(error).__name__) from error


def add_reports(reports: Sequence[ActivityReport]) -> ActivityReport:
    """Add up: counts are summed, the youngest arrival counts."""
    ages = [r.last_arrival_age for r in reports if r.last_arrival_age is not None]
    return ActivityReport(
        held=sum(report.held for report in reports),
        open=sum(report.open for report in reports),
        last_arrival_age=min(ages, default=None),
    )


def add_metrics(texts: Iterable[str]) -> str:
    """Add up expositions series by series; what belongs to one name stays together."""
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
