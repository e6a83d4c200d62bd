"""The interface between the data path and the workload behind a port.

A connection asks for a pod. If none serves, the upstream holds the connection in its queue, and later admits or
refuses it. The data path does not know why, and the upstream never sees a byte. A port's protocol comes from the
Service port's `appProtocol` or name.

Everything here is called on the worker's event loop and must not block. An upstream may call `admit` or
`give_up` at any time, but not inside `wait`: the caller of `wait` needs its result first.
"""

from __future__ import annotations

import enum
from typing import Literal, NamedTuple, Protocol, TypeAlias

from elasti.resolver.proxy.statistics import TrafficStatistics

TcpWake: TypeAlias = Literal["Connect", "FirstByte", "Protocol"]


class UpstreamAddress(NamedTuple):
    """A pod's address and port."""

    host: str
    port: int


class Refusal(enum.Enum):
    """Why a connection is refused: the HTTP status, the message for the client, and the outcome of its hold."""

    OVERFLOW = (503, "too many requests are waiting for this service to wake", "overflow")
    TIMEOUT = (504, "the service did not wake in time", "timeout")
    BROKEN = (502, "the pod closed the connection or did not answer in HTTP", "failed")
    SILENT = (504, "the pod took the request and did not answer in time", "failed")
    BUSY = (503, "this service has too many open connections", "overflow")
    GONE = (503, "this service is no longer served here", "failed")

    def __init__(self, status: int, message: str, outcome: str) -> None:
        self.status = status
        self.message = message
        self.outcome = outcome


class RequestFacts(Protocol):
    """A request of any HTTP version, as rules see it."""

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
    #: Whole header lines. If empty, the content type is guessed.
    fields: bytes = b""
    #: False for responses to our own programs, which appear in no metric.
    counted: bool = True


class Stage(enum.StrEnum):
    """The stages of a wake-up on the waiting page."""

    ASLEEP = "asleep"
    ASKED = "asked"
    PLACED = "placed"
    STARTING = "starting"
    READY = "ready"
    FAILED = "failed"
    # Too many connections are held.
    BUSY = "busy"


class WaitingPage(Protocol):
    """The page that a visitor sees while a pod starts."""

    @property
    def after(self) -> float:
        """How many seconds a navigation is held before it gets the page; 0 to show it at once."""

    def offers(self, request: RequestFacts) -> bool:
        """Whether a request may get the page: only a browser's top-level navigation."""

    def answer(self) -> LocalAnswer:
        """Return the page."""

    def line(self, stage: Stage | None = None) -> bytes:
        """Return this stage, or the present one, as a line for an open page."""


class HeldConnection(Protocol):
    """A connection that waits for a pod. Unless it leaves, `admit` or `give_up` is called, once."""

    @property
    def held_since(self) -> float | None:
        """The loop's time at which it began to wait. It survives a refusal by a pod."""

    @property
    def is_http(self) -> bool:
        """Whether it speaks HTTP or gRPC, judging by its bytes or its port."""

    def client(self) -> str:
        """Describe the client in short, printable text: its address, and an HTTP/1 request's method and path."""

    def admit(self, address: UpstreamAddress) -> None:
        """Go to this pod, which serves."""

    def give_up(self, refusal: Refusal) -> None:
        """Refuse the client: no pod will serve it."""


class Upstream(Protocol):
    """The workload behind a port of the resolver."""

    @property
    def statistics(self) -> TrafficStatistics:
        """The counters of all its ports together."""

    @property
    def stepping_aside(self) -> bool:
        """Whether connections should end after their response, because pods take over."""

    def pick(self) -> UpstreamAddress | None:
        """Return a serving pod; None if the connection has to wait."""

    def wait(self, waiter: HeldConnection, *, first: bool = False) -> Refusal | None:
        """Queue a connection. `first` puts back a connection that a pod refused.

        Returns a refusal if the queue is full.
        """

    def leave(self, waiter: HeldConnection) -> None:
        """Remove a connection whose client went away. Safe to repeat."""

    def refused(self, address: UpstreamAddress) -> None:
        """A pod did not accept a connection: do not pick it until it does."""

    def explain(self, refusal: Refusal) -> str:
        """Return a refusal's message, with what is known of its cause."""

    def answer_locally(self, request: RequestFacts) -> LocalAnswer | None:
        """Return the response to a request that must not wake the workload; None for other requests."""

    @property
    def page(self) -> WaitingPage | None:
        """The waiting page for browsers; None if it is off."""

    @property
    def tcp_wake(self) -> TcpWake:
        """When a connection that does not speak HTTP wakes the workload."""

    def ignored(self, rule: str) -> None:
        """Count a connection that did not wake the workload, by the rule that matched."""

    def arrived(self, now: float) -> None:
        """Note use: a request or connection arrived at this time of the loop."""


_HTTP = frozenset(
    ("http", "http2", "h2c", "grpc", "grpc-web", "ws", "kubernetes.io/h2c", "kubernetes.io/ws")
)
_TLS = frozenset(("https", "tls", "wss", "kubernetes.io/wss"))


class PortProtocol(enum.Enum):
    """How a port's connections are read, and what wakes the workload."""

    # HTTP/1 or h2c, distinguished by the first bytes; a request wakes.
    HTTP = "http"
    # Passed through unread; the first byte wakes.
    TLS = "tls"
    # Passed through unread; the connection itself wakes, since servers may speak first.
    TCP = "tcp"
    # Not declared: HTTP if the first line is a request line, otherwise as TCP.
    DETECT = "detect"

    @classmethod
    def of_port(cls, *, app_protocol: str | None, name: str | None) -> PortProtocol:
        """Decide by `appProtocol`, else by the name up to its first dash."""
        declared = (app_protocol or "").lower() or (name or "").lower()
        first = declared.partition("-")[0]
        if declared in _HTTP or first in _HTTP:
            return cls.HTTP
        if declared in _TLS or first in _TLS:
            return cls.TLS
        return cls.TCP if first == "tcp" else cls.DETECT
