"""What several workers tell, as one: asked over their Unix sockets, and added up.

A worker that does not answer makes the whole answer fail: a sum without it would say that nothing is
going on where something may be.
"""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING

import aiohttp
import msgspec

from elasti.api.wire import ACTIVITY_PATH, ActivityReport

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from elasti.resolver.objects import ServiceKey

_SAMPLE = re.compile(r"(?P<series>[^#\s{]+(?:\{.*\})?) (?P<value>[-+.0-9a-zA-Z]+)\Z")
# All workers see the same Services, not more of them.
_SAME_FOR_ALL = frozenset(("elasti_resolver_services",))
# Shorter than the second for which an operator waits.
_PATIENCE = 0.8


class WorkerSilent(Exception):
    """A worker did not answer."""


class SummedView:
    """The view of all workers; a `View`."""

    def __init__(self, sockets: Sequence[str], *, patience: float = _PATIENCE) -> None:
        self._sockets = sockets
        self._timeout = aiohttp.ClientTimeout(total=patience)

    async def activity(self, key: ServiceKey) -> ActivityReport | None:
        """Add up what the workers see. Raises WorkerSilent."""
        query = {"namespace": key.namespace, "service": key.service}
        answers = await self._get_all(ACTIVITY_PATH, query)
        reports = [
            msgspec.json.decode(body, type=ActivityReport)
            for status, body in answers
            if status == 200
        ]
        # Caches may differ for a moment: it is there if one worker knows it.
        return add_reports(reports) if reports else None

    async def unready(self) -> str:
        """Return why some worker is not ready."""
        for number, path in enumerate(self._sockets):
            try:
                status, body = await self._get(path, "/readyz", {})
            except WorkerSilent as error:
                return f"worker {number}: {error}"
            if status != 200:
                return f"worker {number}: {body.decode(errors='replace')}"
        return ""

    async def metrics(self) -> bytes:
        """Add up the workers' metrics. Raises WorkerSilent."""
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
            raise WorkerSilent(str(error) or type(error).__name__) from error


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
    if name in _SAME_FOR_ALL:
        series[name] = max(series.get(name, 0.0), value)
    else:
        series[name] = series.get(name, 0.0) + value
