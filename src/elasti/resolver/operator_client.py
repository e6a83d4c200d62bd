"""The resolver's side of the conversation with the operator: a wake-up over HTTP, or in writing."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Self

import aiohttp
import msgspec

from elasti.api.names import WAKE_ANNOTATION
from elasti.api.wire import INCOMING_PATH, IncomingReply, IncomingRequest, WakeOutcome
from elasti.resolver.objects import ELASTI_SERVICES, ServiceKey
from elasti.resolver.wake import OperatorUnreachable
from kubeloop.aio.clock import SystemClock
from kubeloop.client.errors import KubeError
from kubeloop.objects.patches import MergePatch
from kubeloop.objects.times import format_time

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from kubeloop.aio.clock import Clock
    from kubeloop.client import Client as KubeClient

_LONGEST_REPLY = 64 * 1024


class Client:
    """Calls the operator's server; an `Operator`. Use it as an `async with` block.

    `token_file` holds the ServiceAccount token for the operator's audience; it is read for every
    call, since the kubelet replaces it. `failed` and `answered` count.
    """

    def __init__(self, *, url: str, token_file: str = "", timeout: float = 5.0) -> None:
        self._url = url.rstrip("/") + INCOMING_PATH
        self._token_file = Path(token_file) if token_file else None
        self._timeout = aiohttp.ClientTimeout(total=timeout, sock_connect=min(timeout, 2.0))
        self._session: aiohttp.ClientSession | None = None
        self.answered = 0
        self.failed = 0

    def __repr__(self) -> str:
        return f"<operator Client {self._url}>"

    async def __aenter__(self) -> Self:
        # Connections are not kept: behind the Service's address, each new one may be another
        # operator, and a kept one may lead to a dead one.
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(force_close=True, limit=100),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=self._timeout,
        )
        return self

    async def __aexit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        assert self._session is not None
        await self._session.close()

    async def wake(self, key: ServiceKey, *, count: int) -> WakeOutcome:
        """Ask once for a Service to be woken. Raises OperatorUnreachable."""
        try:
            outcome = await self._post(
                IncomingRequest(svc=key.service, namespace=key.namespace, count=count)
            )
        except (OSError, aiohttp.ClientError, TimeoutError) as error:
            self.failed += 1
            raise OperatorUnreachable(str(error) or type(error).__name__) from error
        except OperatorUnreachable:
            self.failed += 1
            raise
        self.answered += 1
        return outcome

    async def _post(self, request: IncomingRequest) -> WakeOutcome:
        assert self._session is not None
        headers = {"Content-Type": "application/json"} | await self._authorization()
        body = msgspec.json.encode(request)
        async with self._session.post(
            self._url, data=body, headers=headers, allow_redirects=False
        ) as answer:
            if answer.status == 200:
                # KubeElasti's operator says 200 whatever happens; take it for a promise.
                return WakeOutcome.SCALING
            return _outcome(answer.status, await answer.content.read(_LONGEST_REPLY))

    async def _authorization(self) -> dict[str, str]:
        if self._token_file is None:
            return {}
        token = await asyncio.to_thread(self._token_file.read_text)
        return {"Authorization": f"Bearer {token.strip()}"}


class WakeAnnotation:
    """Writes the wish onto the ElastiService; a `DurableWish`.

    `object_name` tells the name of the ElastiService of a Service, None where there is none.
    """

    def __init__(
        self,
        client: KubeClient,
        *,
        object_name: Callable[[ServiceKey], str | None],
        clock: Clock | None = None,
    ) -> None:
        self._objects = client.resource(ELASTI_SERVICES)
        self._object_name = object_name
        self._clock = clock or SystemClock()

    async def wish(self, key: ServiceKey) -> None:
        """Set the annotation to the present time. Raises OperatorUnreachable."""
        name = self._object_name(key)
        if name is None:
            return
        content = {"metadata": {"annotations": {WAKE_ANNOTATION: format_time(self._clock.now())}}}
        try:
            await self._objects.patch(
                name, MergePatch(content), namespace=key.namespace, timeout=5.0
            )
        except KubeError as error:
            raise OperatorUnreachable(str(error)) from error


def _outcome(status: int, body: bytes) -> WakeOutcome:
    try:
        reply = msgspec.json.decode(body, type=IncomingReply)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise OperatorUnreachable(f"it answered {status}, and not as an operator does") from None
    return reply.outcome
