"""From a request to its answer: the rate, the attempt, the login, the meaning, the retry.

The order matters. A token of the rate limit is taken for every attempt. An attempt is made with
fresh credentials and once more if they were refused. Only then is the outcome given to the retry
policy, so that a 401 never counts as a retry and a retry never skips the rate limit.

`send` is for the REST methods. `once` is for lists and watches of informers, which bring their own
connection and their own rules for failure: rate and login, and no retry.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

from kubeloop.aio.clock import SystemClock
from kubeloop.client.answers import error_from_response
from kubeloop.client.errors import KubeError
from kubeloop.client.retry import Retries, RetryPolicy
from kubeloop.client.warning_header import WarningLog

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from kubeloop.aio.clock import Clock
    from kubeloop.client.answers import Response
    from kubeloop.client.identity import Identity, Login
    from kubeloop.client.ratelimit import TokenBucket
    from kubeloop.client.request import Request
    from kubeloop.client.transport import Transport

R = TypeVar("R")


class Sender:
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
                return await self.once(lambda login: self._attempt(request, login, timeout))
            except KubeError as error:
                delay = retries.delay_after(error, loop.time() - begun)
                if delay is None:
                    raise
            await asyncio.sleep(delay)

    async def once(self, call: Callable[[Login], Awaitable[R]]) -> R:
        """Make one attempt at something else with this client's rate and login."""
        if self._bucket is not None:
            await self._bucket.acquire()
        return await self._identity.attempt(call)

    async def _attempt(self, request: Request, login: Login, timeout: float | None) -> Response:
        allowed = self._timeout if timeout is None else timeout
        response = await self._transport.send(request, login, timeout=allowed)
        self._warnings.note(response.header_values("warning"), request=str(request))
        if response.ok:
            return response
        raise error_from_response(response, now=self._clock.now())
