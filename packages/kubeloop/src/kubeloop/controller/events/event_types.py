"""Event records: what happened, before it becomes an Event; common to both Event APIs."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

import msgspec

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Callable, Hashable, Sequence

    from kubeloop.objects.meta import JsonObject
    from kubeloop.objects.owners import ObjectReference
    from kubeloop.objects.patches import Patch


EventType: TypeAlias = Literal["Normal", "Warning"]

_LONGEST_INSTANCE = 128
_NO_NAMESPACE = "default"


@dataclasses.dataclass(frozen=True, slots=True)
class Reporter:
    """Who records: the component, such as `elasti-operator`, and which instance of it."""

    component: str
    instance: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "instance", self.instance[:_LONGEST_INSTANCE])


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class EventRecord:
    """Something that happened to an object. `reason` is CamelCase, `message` for people."""

    regarding: ObjectReference
    type: EventType
    reason: str
    message: str
    at: dt.datetime
    action: str = ""
    related: ObjectReference | None = None
    annotations: tuple[tuple[str, str], ...] = ()

    @property
    def namespace(self) -> str:
        """Where its Event goes; Events of cluster-scoped objects go to `default`."""
        return self.regarding.namespace or _NO_NAMESPACE

    @property
    def subject(self) -> ObjectReference:
        """The object that it is about, without its version."""
        return msgspec.structs.replace(self.regarding, resource_version="")

    def metadata(self, serial: int) -> JsonObject:
        """Metadata for its Event; the name is unique by time and, within a moment, by `serial`."""
        nanos = int(self.at.timestamp() * 1_000_000) * 1000 + serial % 1000
        name = f"{self.regarding.name}.{nanos:x}"
        found: dict[str, Any] = {"name": name, "namespace": self.namespace}
        return found | ({"annotations": dict(self.annotations)} if self.annotations else {})


@dataclasses.dataclass(frozen=True, slots=True)
class EventWrite:
    """An Event to be written: by `patch` if it should exist already, else created.

    `key` is what the correlator knows it by.
    """

    key: Hashable
    event: JsonObject
    patch: Patch | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class PeriodicTask:
    """Something that a correlator does from time to time."""

    period: float
    due: Callable[[dt.datetime], Sequence[EventWrite]]


class Correlator(Protocol):
    """Decides which Events occurrences become. Pure except for its memory."""

    def observe(self, record: EventRecord) -> EventWrite | None:
        """Return what to write, None for nothing."""

    def written(self, write: EventWrite, saved: JsonObject) -> None:
        """Note the result of a write."""

    @property
    def periodic_tasks(self) -> Sequence[PeriodicTask]:
        """Periodic work."""
