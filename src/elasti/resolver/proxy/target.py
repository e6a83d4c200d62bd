"""What the data path needs to know of the workload behind a port: the seam to hold and release.

A connection asks for a pod; where none answers yet, it waits in the target's queue and is admitted,
or told to give up. The data path never asks why, and the target never sees a byte.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from elasti.resolver.proxy.heads import RequestHead


class Address(NamedTuple):
    """Where a pod listens."""

    host: str
    port: int


class Refusal(enum.Enum):
    """Why a connection is not served: the HTTP status and the words for its sender."""

    OVERFLOW = (503, "too many requests are waiting for this service to wake")
    TIMEOUT = (504, "the service did not wake in time")
    UNREACHABLE = (502, "no pod of the service could be reached")
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


class Waiter(Protocol):
    """A connection that waits for a pod. Exactly one of the two is called, once."""

    def admit(self, address: Address) -> None:
        """A pod answers: go there."""

    def give_up(self, refusal: Refusal) -> None:
        """No pod will come: tell the client why."""


class Target(Protocol):
    """The workload behind a port of the resolver."""

    @property
    def stepping_aside(self) -> bool:
        """Whether connections should be closed after their answer, because pods take over."""

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

    def answer_locally(self, head: RequestHead) -> bytes | None:
        """Return a whole response for a request that must not wake the workload."""

    def arrived(self) -> None:
        """A request or connection came that counts as use."""

    def answered(self, status: int) -> None:
        """A response of that status was sent."""
