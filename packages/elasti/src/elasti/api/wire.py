"""Messages between programs and people, as values that both sides share. Pure.

People ask on the ElastiService itself (`Ask`). Operator and resolver have three conversations over HTTP:

- The resolver asks the operator for a wake-up: `POST /informer/incoming-request` with an
  `IncomingRequest`; the `IncomingReply` says what was done, after it was done.
- The operator asks a resolver what it sees: `GET /activity?namespace=&service=` on the admin port,
  answered with an `ActivityReport` summed over the resolver's workers. With `hold=1` the pods that
  there are now get nothing more, and what arrives is held: for ten seconds, or until `hold=0`.
- The operator asks a resolver's *data* port whose port it is, before it publishes it. The listener
  answers by itself, without waking or counting anything. The request is one fixed shape, sent whole
  in one write as soon as the connection stands, so that a listener knows it by its first bytes
  whatever protocol the port otherwise speaks: `is_probe(first_bytes)`.
"""

from __future__ import annotations

import datetime as dt
import enum
from typing import Annotated

import msgspec
from msgspec import Meta

from elasti.api.names import (
    KEEP_AWAKE_ANNOTATION,
    OPERATOR,
    RESOLVER,
    SLEEP_ANNOTATION,
    WAKE_ANNOTATION,
)
from kubeloop.objects.meta import JsonObject
from kubeloop.objects.times import format_micro_time, format_time

INCOMING_PATH = "/informer/incoming-request"
CRD_CACHE_PATH = "/crd-cache"
ACTIVITY_PATH = "/activity"

OPERATOR_AUDIENCE = OPERATOR
"""The audience of the tokens with which resolvers call the operator."""
RESOLVER_AUDIENCE = RESOLVER
"""The audience of the tokens with which the operator calls a resolver's admin port."""

PROBE_PATH = "/.well-known/elasti/probe"
PROBE_HEADER = "X-Elasti-Service"
PROBE_PREFIX = f"GET {PROBE_PATH} HTTP/1.1\r\n".encode()
PROBE_LIMIT = 1024
"""No probe, and no answer to one, is longer."""


class IncomingRequest(msgspec.Struct, frozen=True, gc=False):
    """Traffic waits for a Service: KubeElasti's message, and who the first client is.

    `client` is printable: an address, and of HTTP/1 a method and a path without its query.
    """

    svc: Annotated[str, Meta(min_length=1, max_length=253)]
    namespace: Annotated[str, Meta(min_length=1, max_length=253)]
    count: int = 1
    client: Annotated[str, Meta(max_length=1024)] = ""
    wake_id: Annotated[str, Meta(max_length=64)] = msgspec.field(name="wakeId", default="")
    """In the log of both programs; empty from an older resolver, and ignored by an older operator."""


class WakeOutcome(enum.Enum):
    """The outcome of a wake request; `code` is the HTTP status that goes with it.

    WAITS: the target wakes when pods that it may not run beside have ended, or when its dependencies serve; the leader
    must be notified.
    """

    SCALING = "scaling"
    ALREADY_UP = "already-up"
    WAITS = "waits"
    NOT_FOUND = "not-found"
    UNAVAILABLE = "unavailable"

    @property
    def code(self) -> int:
        """The HTTP status."""
        return _CODES[self]


_CODES = {
    WakeOutcome.SCALING: 202,
    WakeOutcome.ALREADY_UP: 202,
    WakeOutcome.WAITS: 202,
    WakeOutcome.NOT_FOUND: 404,
    WakeOutcome.UNAVAILABLE: 503,
}


class WakePart(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An ElastiService of a set that wakes together; `needs` has the places of its dependencies in the set."""

    name: str
    service: str
    needs: tuple[int, ...] = ()


class IncomingReply(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """The reply to a wake request; `message` is for people.

    `leads`: it is the leader, which reports the wake-up with what follows from it. Another has to write
    a note before.
    """

    outcome: WakeOutcome
    message: str = ""
    leads: bool = True
    parts: tuple[WakePart, ...] = ()
    """What wakes with it, each after what it needs, and itself last; empty if it depends on nothing."""
    wake_id: str = msgspec.field(name="wakeId", default="")
    """What the operator calls the wake-up: the id of its first request."""


class LastStart(msgspec.Struct, frozen=True, gc=False):
    """A wake-up as clients saw it: the seconds that the first one waited for a pod, and how many seconds ago that ended."""

    seconds: Annotated[float, Meta(ge=0)]
    age: Annotated[float, Meta(ge=0)]


class ActivityReport(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, gc=False):
    """The traffic of a Service that one resolver replica sees, summed over its workers.

    `open` counts requests under way and connections in use, held ones too; not those that a client
    keeps between two requests. `last_arrival_age` is the seconds since traffic last arrived, None
    if none ever did; probes are not traffic. `last_start` is None before a first one, and from older resolvers.
    """

    held: Annotated[int, Meta(ge=0)]
    open: Annotated[int, Meta(ge=0)]
    last_arrival_age: Annotated[float, Meta(ge=0)] | None = None
    last_start: LastStart | None = None


def activity_query(namespace: str, service: str, *, hold: bool | None) -> dict[str, str]:
    """Return the parameters of a question for activity."""
    query = {"namespace": namespace, "service": service}
    return query if hold is None else {**query, "hold": str(int(hold))}


class ProbeIdentity(msgspec.Struct, frozen=True, gc=False):
    """Whose port a resolver's listener believes to be."""

    namespace: str
    service: str


def probe_request(namespace: str, service: str, *, host: str = "elasti", prefix: str = "") -> bytes:
    """Return the bytes of a probe, which asks whether a port may be published for a Service.

    `host` and `prefix` are for a proxy that routes by host and path.
    """
    head = f"GET {prefix}{PROBE_PATH} HTTP/1.1\r\nHost: {host}\r\n"
    return f"{head}{PROBE_HEADER}: {namespace}/{service}\r\nConnection: close\r\n\r\n".encode()


def is_probe(data: bytes) -> bool:
    """Whether the first bytes of a connection are a probe."""
    return data.startswith(PROBE_PREFIX)


def could_be_probe(data: bytes) -> bool:
    """Whether bytes that are still too few may become a probe."""
    return PROBE_PREFIX.startswith(data[: len(PROBE_PREFIX)])


def probe_answer(identity: ProbeIdentity) -> bytes:
    """Return what a listener answers to any probe, whichever Service it is for; close after it."""
    body = msgspec.json.encode(identity)
    head = (
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body


def read_probe_answer(data: bytes) -> ProbeIdentity | None:
    """Read a whole answer; None for what no resolver's listener answers."""
    head, found, body = data.partition(b"\r\n\r\n")
    if not found or not head.startswith(b"HTTP/1.1 200 "):
        return None
    try:
        return msgspec.json.decode(body, type=ProbeIdentity)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


class Ask(enum.StrEnum):
    """A user's request on the ElastiService itself: durable, whichever replica leads."""

    WAKE = "wake"
    SLEEP = "sleep"
    SUSPEND = "suspend"
    RESUME = "resume"

    @property
    def verb(self) -> str:
        """The right that it takes: waking is for those, too, who may change nothing else."""
        return "patch" if self is Ask.WAKE else "update"

    def patch(self, now: dt.datetime, kept_until: dt.datetime | None = None) -> JsonObject:
        """Return what to merge into an ElastiService; `kept_until` keeps it awake until then."""
        time = format_micro_time(now)
        match self:
            case Ask.WAKE:
                asked: dict[str, str | None] = {WAKE_ANNOTATION: time, SLEEP_ANNOTATION: None}
                if kept_until is not None:
                    asked[KEEP_AWAKE_ANNOTATION] = format_time(kept_until)
                return {"metadata": {"annotations": asked}}
            case Ask.SLEEP:
                return {"metadata": {"annotations": {SLEEP_ANNOTATION: time}}}
            case Ask.SUSPEND:
                return {"spec": {"suspend": True}}
            case Ask.RESUME:
                ended = {"annotations": {KEEP_AWAKE_ANNOTATION: None}}
                return {"metadata": ended, "spec": {"suspend": None}}
