"""Responses of Prometheus and of pods, read to their end within a bound.

A stream returns what has arrived so far, which is the whole body only if it is small. A part that
passes for the whole gives a number that is too small, and a target that sleeps while it is used.

Pods run any tenant's code, so none may cost the others much: only a few are asked at once, of one
target only a few, and within a time for all of them. They are asked at their own addresses, by no
proxy, and none may send the operator elsewhere, set what another is sent, or have it unpack a
little that is very much.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar
from urllib.parse import urljoin, urlsplit

from elasti.api.triggers.destinations import ALLOWED, DENIED, Destinations
from elasti.triggers.reader import ReaderSettings, ScrapeTarget
from kubeloop.aio.tasks import parallelize_until
from kubeloop.http.client import Answer, AnswerTooLong, ConnectFailed, HttpClient
from kubeloop.http.framing import FramingError
from kubeloop.objects.names import url_host

_TIMEOUT = 5.0
_TOGETHER = 10.0
_AT_ONCE = 32
_OF_ONE_TARGET = 4
_REDIRECTS = frozenset((301, 302, 303, 307, 308))
_UNPACKED = {"Accept-Encoding": "identity"}
# A round of triggers comes every 30 s or so; servers in common use keep a connection for a minute.
KEEP = 50.0

T = TypeVar("T")


class UnusableResponse(Exception):
    """A pod's answer cannot be used; the message gives the reason."""


class DestinationDenied(OSError):
    """Triggers may not ask this address."""


def destinations_of(settings: ReaderSettings) -> Destinations:
    """Return the addresses that triggers of this installation may ask."""
    server = settings.client.config.endpoint.url if settings.client is not None else ""
    return Destinations.of(server, settings.variables.get(ALLOWED, ()))


def guarded_client(destinations: Destinations | None, *, keep: float = KEEP) -> HttpClient:
    """Make a client that connects to permitted addresses only, whatever a name resolves to."""
    if destinations is None:
        return HttpClient(keep=keep)
    permits = destinations.permits

    def check(host: str, port: int) -> None:
        if not permits(host, port):
            raise DestinationDenied(DENIED)

    return HttpClient(keep=keep, check=check)


@dataclasses.dataclass(eq=False)
class PodQueries:
    """Asks the pods of targets over HTTP.

    `timeout`: seconds for one pod; `together`: for all of a target's. `at_once`: how many are asked.
    """

    http: HttpClient
    _: dataclasses.KW_ONLY
    timeout: float = _TIMEOUT
    together: float = _TOGETHER
    at_once: int = _AT_ONCE

    def __post_init__(self) -> None:
        self._gate = asyncio.Semaphore(self.at_once)

    async def ask(
        self,
        pods: Sequence[ScrapeTarget],
        port: int | str,
        path: str,
        read: Callable[[Answer], Awaitable[T]],
        *,
        redirects: int = 0,
    ) -> list[T] | str:
        """Return the result of `read` for each pod's answer, or the first failure.

        `read` raises UnusableResponse, or what `Answer` raises. `redirects`: how many are followed, on the
        pod itself; others are for `read` to judge.
        """
        found: dict[int, T] = {}
        failures: list[str] = []

        async def one(index: int) -> None:
            async with self._gate:
                try:
                    found[index] = await self._ask(pods[index], port, path, read, redirects)
                except UnusableResponse as error:
                    failures.append(str(error))

        try:
            async with asyncio.timeout(self.together):
                await parallelize_until(_OF_ONE_TARGET, len(pods), one)
        except TimeoutError:
            return f"its {len(pods)} pods did not all answer within {self.together:g} s"
        return failures[0] if failures else [found[index] for index in range(len(pods))]

    async def _ask(
        self,
        pod: ScrapeTarget,
        wanted: int | str,
        path: str,
        read: Callable[[Answer], Awaitable[T]],
        redirects: int,
    ) -> T:
        port = pod.port(wanted)
        if port is None:
            raise UnusableResponse(
                f"the Service has no port {wanted!r}, so its pods cannot be queried"
            )
        url, where = f"http://{url_host(pod.address)}:{port}{path}", f"pod {pod.address}"
        try:
            for _ in range(max(redirects, 1)):
                async with self.http.request(
                    "GET", url, timeout=self.timeout, headers=_UNPACKED
                ) as answer:
                    if not redirects or answer.status not in _REDIRECTS:
                        return await read(answer)
                    url = _redirect_within(url, answer)
        except TimeoutError:
            raise UnusableResponse(f"{where} did not answer in time at port {port}") from None
        except (OSError, FramingError) as error:
            cause = error.cause if isinstance(error, ConnectFailed) else error
            why = "it closed the connection, or its answer is not HTTP"
            if isinstance(cause, DestinationDenied):
                why = DENIED
            elif isinstance(cause, OSError) and cause.errno:
                why = os.strerror(cause.errno)
            raise UnusableResponse(f"{where} cannot be queried at port {port}: {why}") from None
        except (UnusableResponse, AnswerTooLong) as error:
            raise UnusableResponse(f"{where}: {error}") from None
        raise UnusableResponse(f"{where}: more than {redirects} redirects from {path}")

    async def close(self) -> None:
        """Close connections."""
        await self.http.aclose()


def refuse_packed(answer: Answer) -> None:
    """Raise UnusableResponse for a body that is compressed although that was not asked for."""
    if (packed := answer.header("content-encoding") or "identity") != "identity":
        raise UnusableResponse(
            f"it answers with Content-Encoding {packed[:40]!r}, which was not asked for"
        )


def _redirect_within(url: str, answer: Answer) -> str:
    """Return where a pod redirects to on itself; no pod may send the operator to other addresses."""
    location = answer.header("location")
    with contextlib.suppress(ValueError):
        target = urljoin(url, location)
        if urlsplit(target)[:2] == urlsplit(url)[:2]:
            return target
    raise UnusableResponse(f"it redirects to {location!r}, and metrics are read from pods only")
