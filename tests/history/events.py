"""What a history is made of: one event a line, as JSON, in any order.

    {"event": "call", "at": 1.25, "id": "r-1", "service": "web"}
    {"event": "answer", "at": 2.5, "id": "r-1", "status": 200, "pod": "web-1", "held": 1.1}
    {"event": "executed", "at": 2.4, "id": "r-1", "pod": "web-1"}
    {"event": "pod", "at": 1.6, "name": "web-1", "phase": "there"}
    {"event": "scaled", "at": 1.3, "service": "web", "replicas": 1, "by": "elasti"}
    {"event": "rotation", "at": 0.5, "service": "web", "endpoints": 2}

Moments are seconds of one clock. Any system that scales to zero can be judged by such a file: calls and
answers are its clients' log, executions its app's, the rest comes from watches or from the audit log of
the API server.
"""

from __future__ import annotations

from pathlib import Path
from typing import TypeAlias

import msgspec


class Moment(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", omit_defaults=True):
    """Something that happened."""

    at: float


class Call(Moment, tag="call", frozen=True, kw_only=True):
    """A client began to send a request, to connect for it included."""

    id: str
    service: str


class Answer(Moment, tag="answer", frozen=True, kw_only=True):
    """The request's end: an answer, or what came in its place."""

    id: str
    status: int = 0
    #: The pod that the answer names.
    pod: str = ""
    #: For how many seconds a proxy says that it held the request; None: it did not.
    held: float | None = None
    #: Why there is no good answer; empty: there is one.
    fault: str = ""


class Executed(Moment, tag="executed", frozen=True, kw_only=True):
    """An app wrote down that it executed a request."""

    id: str
    pod: str


class Pod(Moment, tag="pod", frozen=True, kw_only=True):
    """A pod's phase changed: `there`, `ready`, `leaving` or `gone`."""

    name: str
    phase: str


class Scaled(Moment, tag="scaled", frozen=True, kw_only=True):
    """The workload behind a Service was asked for so many replicas."""

    service: str
    replicas: int
    #: The field manager or user, if that is known.
    by: str = ""


class Rotation(Moment, tag="rotation", frozen=True, kw_only=True):
    """How many endpoints all slices of a Service have together that connections are sent to."""

    service: str
    endpoints: int


class Excused(Moment, tag="excused", frozen=True, kw_only=True):
    """From `at` until `until` something was broken on purpose that costs requests with any system."""

    until: float
    why: str


Event: TypeAlias = Call | Answer | Executed | Pod | Scaled | Rotation | Excused

_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(Event)


def write(path: Path, events: list[Event]) -> None:
    """Write a history, the oldest event first."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        for event in sorted(events, key=lambda one: one.at):
            file.write(_ENCODER.encode(event) + b"\n")


def read(path: Path) -> list[Event]:
    """Read a history. Raises ValueError that names the line that is not an event."""
    events = []
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        if not line.strip():
            continue
        try:
            events.append(_DECODER.decode(line))
        except msgspec.MsgspecError as error:
            raise ValueError(f"{path}:{number}: {error}") from None
    return events
