"""What the data path needs to know of the workload behind a port: the seam to hold and release.

A connection asks for a pod; where none answers yet, it is held in the upstream's queue and is admitted,
or refused. The data path never asks why, and the upstream never sees a byte. What the port speaks
comes from the Service port's `appProtocol` or its name.

Everything here is called on the worker's event loop and must not block. An upstream may call `admit` or
`give_up` from anywhere on that loop, but never from inside `wait`: the caller of `wait` must have its
answer first.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from elasti.resolver.proxy.statistics import TrafficStatistics


class UpstreamAddress(NamedTuple):
    """Where a pod listens."""

    host: str
    port: int


class Refusal(enum.Enum):
    """Why a connection is not served: the HTTP status and the message for its client."""

    OVERFLOW = (503, "too many requests are waiting for this service to wake")
    TIMEOUT = (504, "the service did not wake in time")
    BROKEN = (502, "the pod closed the connection or answered what is not HTTP")
    SILENT = (504, "the pod took the request and did not answer in time")
    BUSY = (503, "this service has too many open connections here")
    GONE = (503, "the service is no longer served here")

    @property
    def status(self) -> int:
        """The HTTP status."""
        return self.value[0]

    @property
    def message(self) -> str:
        """The reason, for the client."""
        return self.value[1]


class RequestFacts(Protocol):
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
    """A response that needs no pod; `fields` are whole lines, in the place of a guessed content type.

    One that is not `counted` is for our own programs, and in no metric.
    """

    status: int
    body: bytes = b""
    fields: bytes = b""
    counted: bool = True


class Stage(enum.StrEnum):
    """How far a wake-up is, as a page shows it."""

    ASLEEP = "asleep"
    ASKED = "asked"
    PLACED = "placed"
    STARTING = "starting"
    READY = "ready"
    FAILED = "failed"
    # Too many wait already.
    BUSY = "busy"


class WaitingPage(Protocol):
    """What a person sees while a pod starts."""

    @property
    def after(self) -> float:
        """How many seconds a navigation is held before it gets the page; 0 for no hold at all."""

    def offers(self, request: RequestFacts) -> bool:
        """Whether a request may get the page: a top-level navigation of a browser, and nothing else."""

    def answer(self) -> LocalAnswer:
        """Return the page."""

    def line(self, stage: Stage | None = None) -> bytes:
        """Return a line for an open page: this stage, or the present one."""


class HeldConnection(Protocol):
    """A connection that waits for a pod. Exactly one of the two is called, once, unless it left."""

    @property
    def held_since(self) -> float | None:
        """The loop's time at which it began to wait; kept by one that comes back from a pod."""

    @property
    def is_http(self) -> bool:
        """Whether it speaks HTTP or gRPC, as far as its bytes or its port say."""

    def client(self) -> str:
        """Return who waits, printable and short: the address, and what HTTP/1 asks for."""

    def admit(self, address: UpstreamAddress) -> None:
        """A pod answers: go there."""

    def give_up(self, refusal: Refusal) -> None:
        """No pod will come: answer the client with the reason."""


class Upstream(Protocol):
    """The workload behind a port of the resolver."""

    @property
    def statistics(self) -> TrafficStatistics:
        """Where its traffic is counted, that of all its ports together."""

    @property
    def stepping_aside(self) -> bool:
        """Whether connections should end after their answer, because pods take over."""

    def pick(self) -> UpstreamAddress | None:
        """Return a pod that answers, or None: wait."""

    def wait(self, waiter: HeldConnection, *, first: bool = False) -> Refusal | None:
        """Queue a connection; `first` puts one back that was admitted to a pod that refused it.

        Returns the refusal where the queue is full: the waiter is not in it then.
        """

    def leave(self, waiter: HeldConnection) -> None:
        """Take a connection out of the queue; its client went away. Safe to repeat."""

    def refused(self, address: UpstreamAddress) -> None:
        """A pod did not accept a connection: do not pick it before it answers again."""

    def answer_locally(self, request: RequestFacts) -> LocalAnswer | None:
        """Return the response to a request that must not wake the workload; None for all others."""

    @property
    def page(self) -> WaitingPage | None:
        """What browsers are shown while they wait; None where they wait as all others."""

    def arrived(self, now: float) -> None:
        """A request or connection came that counts as use, at this time of the loop."""


_HTTP = frozenset(
    ("http", "http2", "h2c", "grpc", "grpc-web", "ws", "kubernetes.io/h2c", "kubernetes.io/ws")
)
_TLS = frozenset(("https", "tls", "wss", "kubernetes.io/wss"))


class PortProtocol(enum.Enum):
    """How connections on a port are read, and what of them wakes the workload."""

    # HTTP/1 or h2c, distinguished by the first bytes; a request wakes.
    HTTP = "http"
    # Passed through unread; the first byte wakes.
    TLS = "tls"
    # Passed through unread; the connection itself wakes, since servers may speak first.
    TCP = "tcp"
    # Not declared: HTTP where the first line is a request's, else as TCP.
    DETECT = "detect"

    @classmethod
    def of_port(cls, *, app_protocol: str | None, name: str | None) -> PortProtocol:
        """Read `appProtocol`, else the part of the name before its first dash."""
        said = (app_protocol or "").lower() or (name or "").lower()
        first = said.partition("-")[0]
        if said in _HTTP or first in _HTTP:
            return cls.HTTP
        if said in _TLS or first in _TLS:
            return cls.TLS
        return cls.TCP if first == "tcp" else cls.DETECT
