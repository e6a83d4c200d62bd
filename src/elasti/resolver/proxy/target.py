"""What the data path needs to know of the workload behind a port: the seam to hold and release.

A connection asks for a pod; where none answers yet, it waits in the target's queue and is admitted,
or told to give up. The data path never asks why, and the target never sees a byte.

Everything here is called on the worker's event loop and must not block. A target may call `admit` or
`give_up` from anywhere on that loop, but never from inside `wait`: the caller of `wait` must have its
answer first.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from elasti.resolver.proxy.statistics import Statistics


class Address(NamedTuple):
    """Where a pod listens."""

    host: str
    port: int


class Refusal(enum.Enum):
    """Why a connection is not served: the HTTP status and the words for its sender."""

    OVERFLOW = (503, "too many requests are waiting for this service to wake")
    TIMEOUT = (504, "the service did not wake in time")
    UNREACHABLE = (502, "no pod of the service could be reached")
    BROKEN = (502, "the pod closed the connection or answered what is not HTTP")
    SILENT = (504, "the pod took the request and did not answer in time")
    BUSY = (503, "this service has too many open connections here")
    GONE = (503, "the service is no longer served here")
    DRAINING = (503, "the resolver is shutting down")

    @property
    def status(self) -> int:
        """The HTTP status."""
        return self.value[0]

    @property
    def words(self) -> str:
        """The reason for people."""
        return self.value[1]


class Asked(Protocol):
    """A request as rules see it, whatever version of HTTP it came in."""

    @property
    def method(self) -> bytes:
        """The method, as sent."""

    @property
    def target(self) -> bytes:
        """Path and query, as sent."""

    @property
    def host(self) -> bytes | None:
        """The Host field or `:authority`."""

    def field(self, name: bytes) -> bytes | None:
        """Return a field's first value by its lower-case name."""


class LocalAnswer(NamedTuple):
    """A response that needs no pod."""

    status: int
    body: bytes = b""


class Waiter(Protocol):
    """A connection that waits for a pod. Exactly one of the two is called, once, unless it left."""

    @property
    def held_since(self) -> float | None:
        """The loop's time at which it began to wait; kept by one that comes back from a pod."""

    def admit(self, address: Address) -> None:
        """A pod answers: go there."""

    def give_up(self, refusal: Refusal) -> None:
        """No pod will come: tell the client why."""


class Target(Protocol):
    """The workload behind a port of the resolver."""

    @property
    def statistics(self) -> Statistics:
        """Where its traffic is counted, that of all its ports together."""

    @property
    def stepping_aside(self) -> bool:
        """Whether connections should end after their answer, because pods take over."""

    def pick(self) -> Address | None:
        """Return a pod that answers, or None: wait."""

    def wait(self, waiter: Waiter, *, first: bool = False) -> Refusal | None:
        """Queue a connection; `first` puts one back that was admitted to a pod that refused it.

        Returns the refusal where the queue is full: the waiter is not in it then.
        """

    def leave(self, waiter: Waiter) -> None:
        """Take a connection out of the queue; its client went away. Safe to repeat."""

    def refused(self, address: Address) -> None:
        """A pod did not accept a connection: do not pick it before it answers again."""

    def answer_locally(self, asked: Asked) -> LocalAnswer | None:
        """Return the response to a request that must not wake the workload; None for all others."""

    def arrived(self, now: float) -> None:
        """A request or connection came that counts as use, at this time of the loop."""
