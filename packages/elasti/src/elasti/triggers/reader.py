"""The interface of trigger readers, and how the operator loads one.

The reader of a type is the module of its name in this package, with a function `make_reader`. A reader
knows nothing of the operator: it is given all that it needs of a target.
"""

from __future__ import annotations

import dataclasses
import importlib
import math
from collections.abc import Callable, Coroutine, Hashable, Mapping, Sequence
from typing import Any, TypeAlias

from kubeloop.aio.clock import Clock
from kubeloop.client.client import Client
from kubeloop.objects.meta import ObjectName

ReadSecret: TypeAlias = Callable[[str, str], Coroutine[Any, Any, Mapping[str, str]]]
FindObject: TypeAlias = Callable[
    [Hashable, str, type[Any], ObjectName, Callable[[Any], None]], Coroutine[Any, Any, Any]
]


class SecretUnavailable(Exception):
    """A Secret that a trigger names cannot be read; the message gives the reason and the remedy."""


@dataclasses.dataclass(frozen=True, slots=True)
class TriggerReading:
    """The result of one reading: a value, or an error."""

    value: float = math.nan
    error: str = ""
    span: float = 0.0
    """The seconds up to now that the value covers; 0 for a momentary one."""
    pending: bool = False
    """There is no value yet, and nothing is wrong: a rate needs two readings, and a target needs pods."""
    steady: float = 0.0
    """Bytes a second, if use has been so steady for long that a program seems to cause it."""

    @property
    def usable(self) -> bool:
        """Whether the value can be compared at all."""
        return not self.error and not math.isnan(self.value)


@dataclasses.dataclass(frozen=True, slots=True)
class ScrapeTarget:
    """A pod of the target."""

    identity: str
    address: str
    ports: tuple[tuple[str, int], ...]
    """Its Service's target ports with their names, in their order."""
    name: str = ""

    def port(self, wanted: int | str) -> int | None:
        """Return the port's number: one given, one by name, or the first; None for unknown."""
        if isinstance(wanted, int) and wanted:
            return wanted
        for name, number in self.ports:
            if not wanted or name == wanted:
                return number
        return None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ReadContext:
    """The trigger's target, as far as readers need it."""

    key: Hashable
    """The trigger's own, the same in every round."""
    cooldown: float
    namespace: str = ""
    pods: Callable[[], Sequence[ScrapeTarget]] = tuple
    asleep: bool = False
    """The target has no pods, and should not have any."""
    last_arrival: float = -math.inf
    """When traffic last reached a resolver, as far as the leader knows, in seconds since 1970."""
    changed: Callable[[], None] = lambda: None
    """Has the trigger read again, soon."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ReaderSettings:
    """The dependencies of a reader."""

    clock: Clock
    client: Client | None = None
    """Has the operator's rights."""
    variables: Mapping[str, Any] = dataclasses.field(default_factory=dict, repr=False)
    """Those of its type's variables that are set."""
    secret: ReadSecret | None = None
    """Reads a Secret by namespace and name. Raises SecretUnavailable."""
    find: FindObject | None = None
    """Finds an object by a watch, which tells a trigger, by its key, of changes. Raises KubeError."""
    leave: Callable[[Hashable], None] = lambda _key: None
    """Ends that."""


class TriggerReader:
    """Reads all triggers of one type, many at once. A reader keeps the state that they share."""

    async def read(self, metadata: Any, context: ReadContext) -> TriggerReading:
        """Read one trigger now; a failure is an error in the reading, not an exception."""
        raise NotImplementedError

    def forget(self, key: Hashable) -> None:
        """Drop the state of a trigger that is gone or was changed."""

    async def end_round(self) -> None:
        """Every trigger was read once, or the time for that is over."""

    async def close(self) -> None:
        """Close connections."""


def open_reader(name: str, settings: ReaderSettings) -> TriggerReader:
    """Load the reader of a type, and make one."""
    reader: TriggerReader = importlib.import_module(f"{__package__}.{name}").make_reader(settings)
    return reader
