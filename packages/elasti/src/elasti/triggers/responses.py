"""Responses of Prometheus and of pods, read to their end within a bound.

A stream hands out what has arrived so far, which is the whole body only for small ones. A
beginning that is taken for the whole gives a number that is too small, and a target that sleeps
while it is used.

Pods run any tenant's code, so none may cost the others much: only so many are asked at once, of one target
only a few, and within a time for all of them. They are asked at their own addresses, by no proxy, and none
may send the operator elsewhere, set what another is sent, or have it unpack a little that is very much.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
from typing import TYPE_CHECKING, TypeVar

import aiohttp
from yarl import URL

from kubeloop.aio.tasks import parallelize_until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from elasti.triggers.registry import ScrapeTarget

_MIB = 1 << 20
_CHUNK = 32 * 1024
_TIMEOUT = 5.0
_TOGETHER = 10.0
_AT_ONCE = 32
_OF_ONE_TARGET = 4
_REDIRECTS = frozenset((301, 302, 303, 307, 308))
_UNPACKED = {"Accept-Encoding": "identity"}

T = TypeVar("T")


class ResponseTooLong(Exception):
    """The body has no end, or one that is too far away."""


class UnusableResponse(Exception):
    """What a pod answered cannot be used; the message says why."""


async def whole_body(response: aiohttp.ClientResponse, *, limit: int) -> bytes:
    """Read a body to its end. Raises ResponseTooLong, and what aiohttp raises."""
    return b"".join([piece async for piece in body_chunks(response, limit=limit)])


async def body_chunks(response: aiohttp.ClientResponse, *, limit: int) -> AsyncIterator[bytes]:
    """Iterate over a body to its end, in small pieces. Raises ResponseTooLong, and what aiohttp raises."""
    length = 0
    while data := await response.content.readany():
        length += len(data)
        if length > limit:
            raise ResponseTooLong(f"the answer is longer than {limit / _MIB:g} MiB")
        for first in range(0, len(data), _CHUNK):
            yield data[first : first + _CHUNK]


def pod_session() -> aiohttp.ClientSession:
    """Make the session for a `PodQueries`."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=_AT_ONCE),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        trust_env=False,
    )


@dataclasses.dataclass(eq=False)
class PodQueries:
    """Asks the pods of targets over HTTP.

    `timeout`: seconds for one pod; `together`: for all of a target's. `at_once`: how many are asked.
    """

    session: aiohttp.ClientSession
    _: dataclasses.KW_ONLY
    timeout: float = _TIMEOUT
    together: float = _TOGETHER
    at_once: int = _AT_ONCE

    def __post_init__(self) -> None:
        self._timeout = aiohttp.ClientTimeout(total=self.timeout)
        self._gate = asyncio.Semaphore(self.at_once)

    async def ask(
        self,
        pods: Sequence[ScrapeTarget],
        port: int | str,
        path: str,
        read: Callable[[aiohttp.ClientResponse], Awaitable[T]],
        *,
        redirects: int = 0,
    ) -> list[T] | str:
        """Return what `read` makes of each pod's answer, or why one has none.

        `read` raises UnusableResponse, or what aiohttp raises. `redirects`: how many are followed, on the
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
        read: Callable[[aiohttp.ClientResponse], Awaitable[T]],
        redirects: int,
    ) -> T:
        port = pod.port(wanted)
        if port is None:
            raise UnusableResponse(f"the Service has no port {wanted!r} to ask its pods at")
        host = f"[{pod.address}]" if ":" in pod.address else pod.address
        url, where = URL(f"http://{host}:{port}{path}"), f"pod {pod.address}"
        try:
            for _ in range(max(redirects, 1)):
                async with self.session.get(
                    url, timeout=self._timeout, allow_redirects=False, headers=_UNPACKED
                ) as response:
                    if not redirects or response.status not in _REDIRECTS:
                        return await read(response)
                    url = _redirect_within(response)
        except TimeoutError:
            raise UnusableResponse(f"{where} did not answer in time at port {port}") from None
        except (aiohttp.ClientError, OSError) as error:
            number = error.errno if isinstance(error, OSError) else None
            why = os.strerror(number) if number else "it closed, or what it sent is not HTTP"
            raise UnusableResponse(f"{where} cannot be asked at port {port}: {why}") from None
        except (UnusableResponse, ResponseTooLong) as error:
            raise UnusableResponse(f"{where}: {error}") from None
        raise UnusableResponse(f"{where}: more than {redirects} redirects from {path}")

    async def close(self) -> None:
        """Close connections."""
        await self.session.close()


def refuse_packed(response: aiohttp.ClientResponse) -> None:
    """Raise UnusableResponse for a body that is packed, unasked."""
    if (packed := response.headers.get("Content-Encoding", "identity")) != "identity":
        raise UnusableResponse(
            f"it answers with Content-Encoding {packed[:40]!r}, which was not asked for"
        )


def _redirect_within(response: aiohttp.ClientResponse) -> URL:
    """Return where a pod redirects to on itself; no pod may send the operator to other addresses."""
    location = response.headers.get("Location", "")
    with contextlib.suppress(ValueError):
        url = response.url.join(URL(location))
        if url.origin() == response.url.origin():
            return url
    raise UnusableResponse(f"it redirects to {location!r}, and metrics are read from pods only")
