"""When a request is sent again, as data and one pure decision.

Only one layer retries. Requests of the REST methods are retried here; the lists and watches of
informers are not, because the reflector has its own rules for every outcome and two layers would
multiply. The rules:

- The server asked for it: 429, or 5xx with a Retry-After. It has not acted, so anything may be sent
  again, a creation too. The delay is the server's, or one second for a 429 that names none.
- The connection failed before any byte of the answer: only what is repeatable is sent again. If
  nothing can have reached the server (refused), the same, since waiting longer is the caller's
  decision.
- Everything else is the caller's to handle.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from kubeloop.aio.backoff import Backoff, DelaySequence
from kubeloop.client.errors import ApiError, ConnectionLost, ConnectionRefused, ProtocolError

if TYPE_CHECKING:
    from kubeloop.client.errors import KubeError
    from kubeloop.client.request import Request

_CONNECTION_BACKOFF = Backoff(duration=0.1, factor=2.0, jitter=0.5, cap=2.0)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How often and for how long. A wait that would pass `max_seconds` is not begun."""

    max_retries: int = 10
    max_seconds: float = 120.0
    max_connection_retries: int = 3
    connection_backoff: Backoff = _CONNECTION_BACKOFF

    @classmethod
    def never(cls) -> RetryPolicy:
        """Return the policy that sends everything once."""
        return cls(max_retries=0, max_connection_retries=0)


class Retries:
    """One request's retries so far."""

    def __init__(self, policy: RetryPolicy, request: Request) -> None:
        self._policy = policy
        self._request = request
        self._asked = 0
        self._lost = 0
        self._backoff: DelaySequence = policy.connection_backoff.start()

    def delay_after(self, error: KubeError, elapsed: float) -> float | None:
        """Return how long to wait before the next try; None if the error is final.

        `elapsed` are the seconds since the request was first begun.
        """
        delay = self._wanted_by_server(error)
        if delay is None:
            delay = self._after_lost_connection(error)
        if delay is None or elapsed + delay > self._policy.max_seconds:
            return None
        return delay

    def _wanted_by_server(self, error: KubeError) -> float | None:
        delay = server_delay(error)
        if delay is None or self._asked >= self._policy.max_retries:
            return None
        self._asked += 1
        return delay

    def _after_lost_connection(self, error: KubeError) -> float | None:
        if not self._request.repeatable or not _is_connection_failure(error):
            return None
        if self._lost >= self._policy.max_connection_retries:
            return None
        self._lost += 1
        return self._backoff.next_delay()


def server_delay(error: KubeError) -> float | None:
    """Return the seconds after which the server wants the same request again; None if not."""
    if not isinstance(error, ApiError | ProtocolError):
        return None
    if error.code == 429:
        return 1.0 if error.retry_after is None else error.retry_after
    return error.retry_after if error.code >= 500 else None


def _is_connection_failure(error: KubeError) -> bool:
    if isinstance(error, ConnectionLost):
        return not error.answer_begun
    return isinstance(error, ConnectionRefused)
