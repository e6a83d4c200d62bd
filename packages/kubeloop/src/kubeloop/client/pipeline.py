"""From a request to its response: rate limit, attempt, authentication, meaning, retry.

The order matters. A token of the rate limit is taken for every attempt. An attempt is made with
fresh credentials and once more if they were refused. Only then is the outcome given to the retry
policy, so that a 401 never counts as a retry and a retry never skips the rate limit.

`RequestPipeline.send` is for the REST methods. `once` is for lists and watches of informers, which
bring their own connection and their own rules for failure: rate limit and authentication, and no
retry. `ObjectCalls` decodes responses that are one object, in the representation that the caller
chose.
"""

from __future__ import annotations

import asyncio
import dataclasses
from typing import TYPE_CHECKING, Generic, TypedDict, TypeVar

import msgspec

from kubeloop.aio.clock import Clock, SystemClock
from kubeloop.client.errors import KubeError
from kubeloop.client.request import JSON, Request, write, write_query
from kubeloop.client.responses import Response, WarningLog, error_from_response, undecodable
from kubeloop.client.retry import Retries, RetryPolicy
from kubeloop.objects.list_watch import DecodeError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from kubeloop.client.auth.identity import AuthContext, Identity
    from kubeloop.client.ratelimit import TokenBucket
    from kubeloop.client.wire.transport import Transport
    from kubeloop.client.wire.websocket import WebSocket
    from kubeloop.objects.codec import Codec


R = TypeVar("R")


T = TypeVar("T")


class RequestPipeline:
    """Sends the requests of one client."""

    def __init__(
        self,
        *,
        identity: Identity,
        transport: Transport,
        timeout: float,
        retry: RetryPolicy | None = None,
        bucket: TokenBucket | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._identity = identity
        self._transport = transport
        self._timeout = timeout
        self._retry = retry or RetryPolicy()
        self._bucket = bucket
        self._clock = clock or SystemClock()
        self._warnings = WarningLog()

    async def send(self, request: Request, *, timeout: float | None = None) -> Response:
        """Return the answer of a request that succeeded. Raises `KubeError` for any other.

        `timeout` is for each attempt, instead of the client's own.
        """
        loop = asyncio.get_running_loop()
        begun = loop.time()
        retries = Retries(self._retry, request)
        while True:
            try:
                return await self.once(lambda auth: self._attempt(request, auth, timeout))
            except KubeError as error:
                delay = retries.delay_after(error, loop.time() - begun)
                if delay is None:
                    raise
            await asyncio.sleep(delay)

    async def once(self, call: Callable[[AuthContext], Awaitable[R]]) -> R:
        """Make one attempt at something else with this client's rate and login."""
        if self._bucket is not None:
            await self._bucket.acquire()
        return await self._identity.attempt(call)

    async def open_socket(self, request: Request, *, protocols: tuple[str, ...]) -> WebSocket:
        """Open a WebSocket, in one attempt: what it asks for may have begun. Raises `KubeError`."""
        return await self.once(
            lambda auth: self._transport.open_socket(
                request, auth, protocols=protocols, timeout=self._timeout
            )
        )

    async def _attempt(
        self, request: Request, auth: AuthContext, timeout: float | None
    ) -> Response:
        allowed = self._timeout if timeout is None else timeout
        response = await self._transport.send(request, auth, timeout=allowed)
        self._warnings.note(response.header_values("warning"), request=str(request))
        if response.ok:
            return response
        raise error_from_response(response, now=self._clock.now())


class WriteOptions(TypedDict, total=False):
    """Keyword arguments of every write.

    `dry_run`: check and answer, store nothing. `field_manager`: under which name the fields are
    owned; required by `apply`. `field_validation`: `Strict`, `Warn` or `Ignore` unknown fields.
    `timeout`: seconds for one attempt, instead of the client's.
    """

    dry_run: bool
    field_manager: str
    field_validation: str
    timeout: float | None


class _Kind(msgspec.Struct):
    kind: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class ObjectCalls(Generic[T]):
    """A sender and the codec for what comes back."""

    pipeline: RequestPipeline
    codec: Codec[T]

    async def call(self, request: Request, *, timeout: float | None = None) -> T:
        """Return the object that answers a request."""
        response = await self.pipeline.send(request, timeout=timeout)
        return decode(response, self.codec.decode)

    async def write(
        self,
        method: str,
        path: str,
        body: bytes,
        options: WriteOptions,
        *,
        content_type: str = JSON,
        force: bool = False,
    ) -> T:
        """Send a body, with the options of every write; return the object that answers."""
        query = write_query(
            dry_run=options.get("dry_run", False),
            field_manager=options.get("field_manager", ""),
            field_validation=options.get("field_validation", ""),
            force=force,
        )
        request = write(method, path, body, content_type=content_type, query=query)
        return await self.call(request, timeout=options.get("timeout"))

    async def call_optional(self, request: Request, *, timeout: float | None = None) -> T | None:
        """Return the object that answers, or None if a mere Status says success."""
        response = await self.pipeline.send(request, timeout=timeout)
        if decode(response, msgspec.json.Decoder(_Kind).decode).kind == "Status":
            return None
        return decode(response, self.codec.decode)


def decode(response: Response, decoder: Callable[[bytes], R]) -> R:
    """Decode a body; raises `ProtocolError` that names the URL if it is something else."""
    try:
        return decoder(response.body)
    except (DecodeError, msgspec.MsgspecError) as error:
        raise undecodable(response, error) from error
