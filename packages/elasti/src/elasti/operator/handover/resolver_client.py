"""The operator's questions to resolvers: whose port this is, what they see, whether they are there.

Every question is bounded by about a second, and no answer is an answer: an endpoint that says nothing is
not published, and a target whose traffic no resolver can account for is not parked.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Protocol, Self, TypeAlias
from urllib.parse import urlencode

import msgspec

from elasti.api.wire import (
    ACTIVITY_PATH,
    PROBE_LIMIT,
    ActivityReport,
    ProbeIdentity,
    activity_query,
    probe_request,
    read_probe_answer,
)
from elasti.authn.tls import PeerTls
from kubeloop.aio.keepalive import Keepalive
from kubeloop.http.client import AnswerTooLong, HttpClient
from kubeloop.http.framing import FramingError
from kubeloop.objects.names import url_host

_TIMEOUT = 1.0
_ANSWER_LIMIT = 65536
# Long enough for one packet to be lost and sent again.
_CONNECT_TIMEOUT = 1.2
# A peer whose node is gone is noticed by the kernel in two seconds.
_KEEPALIVE = Keepalive(idle=1, interval=1, probes=1)
_NO_ANSWER = (OSError, FramingError, AnswerTooLong, msgspec.MsgspecError, UnicodeDecodeError)


class ResolverClient(Protocol):
    """The questions of the reconciler."""

    async def owns(self, address: str, port: int, namespace: str, service: str) -> bool:
        """Whether a data port of a resolver stands for this Service."""

    async def activity(
        self, address: str, namespace: str, service: str, *, hold: bool | None = None
    ) -> ActivityReport | None:
        """Return what a resolver sees of a Service; None if it gives no usable answer.

        `hold`: for a while it gives nothing to the pods that there are now; False: it does again.
        """

    async def reachable(self, address: str, ended: Callable[[], None]) -> bool:
        """Whether a resolver takes connections at all; `ended` is called when that is to be asked again."""


ResolverClientFactory: TypeAlias = Callable[[], AbstractAsyncContextManager[ResolverClient]]


class HttpResolverClient:
    """Speaks to resolvers by their pods' addresses. Used as an `async with` block.

    `token_file` holds the ServiceAccount token for the admin port; it is read for each question,
    since it rotates. Only that question is secured by `tls`: the others carry no token.
    """

    def __init__(
        self,
        *,
        admin_port: int,
        token_file: str = "",
        tls: PeerTls | None = None,
        timeout: float = _TIMEOUT,
    ) -> None:
        self._admin_port = admin_port
        self._token_file = token_file
        self._tls = tls or PeerTls()
        self._timeout = timeout
        self._http: HttpClient | None = None
        self._kept: dict[str, asyncio.Transport] = {}
        self._broken: set[str] = set()

    async def __aenter__(self) -> Self:
        self._http = HttpClient()
        return self

    async def __aexit__(self, *_exc: object) -> None:
        for transport in self._kept.values():
            transport.abort()
        assert self._http is not None
        await self._http.aclose()

    async def owns(self, address: str, port: int, namespace: str, service: str) -> bool:
        """Whether a data port of a resolver stands for this Service."""
        try:
            async with asyncio.timeout(self._timeout):
                answer = await _ask(address, port, probe_request(namespace, service))
        except (OSError, TimeoutError):
            return False
        return read_probe_answer(answer) == ProbeIdentity(namespace, service)

    async def activity(
        self, address: str, namespace: str, service: str, *, hold: bool | None = None
    ) -> ActivityReport | None:
        """Return what a resolver sees of a Service; None if it gives no usable answer."""
        assert self._http is not None
        query = urlencode(activity_query(namespace, service, hold=hold))
        url = f"http://{url_host(address)}:{self._admin_port}{ACTIVITY_PATH}?{query}"
        try:
            async with self._tls.request(
                self._http, "GET", url, headers=self._headers(), timeout=self._timeout
            ) as answer:
                body = await answer.body(limit=_ANSWER_LIMIT)
                return (
                    msgspec.json.decode(body, type=ActivityReport) if answer.status == 200 else None
                )
        except _NO_ANSWER:
            return None

    async def reachable(self, address: str, ended: Callable[[], None]) -> bool:
        """Whether the admin port accepts: the kernel does, however busy the resolver is.

        The connection is kept, so that the next question costs nothing; one that the network broke is a no.
        """
        if address in self._kept:
            return True
        if address in self._broken:
            self._broken.remove(address)
            return False

        def lost(exc: Exception | None) -> None:
            self._kept.pop(address, None)
            if exc is not None:
                self._broken.add(address)
            ended()

        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(_CONNECT_TIMEOUT):
                transport, _ = await loop.create_connection(
                    lambda: _KeptConnection(lost), address, self._admin_port
                )
        except (OSError, TimeoutError):
            return False
        if not transport.is_closing():
            self._kept[address] = transport
        return True

    def _headers(self) -> dict[str, str]:
        if not self._token_file:
            return {}
        return {"Authorization": f"Bearer {Path(self._token_file).read_text().strip()}"}


class _KeptConnection(asyncio.Protocol):
    """A connection for its own sake. Resolvers close one that is idle for a minute, a silent one sooner."""

    def __init__(self, lost: Callable[[Exception | None], None]) -> None:
        self._lost = lost

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        _KEEPALIVE.enable(transport.get_extra_info("socket"))
        # A silent connection would be closed after ten seconds; the answer is not waited for.
        transport.write(b"GET /healthz HTTP/1.1\r\nHost: resolver\r\n\r\n")

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost(exc)


async def _ask(address: str, port: int, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection(address, port, limit=PROBE_LIMIT)
    try:
        writer.write(request)
        answer = b""
        while len(answer) < PROBE_LIMIT and (data := await reader.read(PROBE_LIMIT)):
            answer += data
        return answer
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
