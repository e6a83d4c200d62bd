"""What a trigger is, and which there are. Pure.

A trigger is one file of this package. It has a Struct for its metadata, from which validation and
the CRD's schema follow, a reader, and a `TriggerType` named TRIGGER that says so. The registry finds
the files; no other module knows which triggers there are.

The package is below `elasti.api`, because types, validation and the CRD are made of what is
registered. So a reader knows nothing of the operator: what it needs of a target it is given.
"""

from __future__ import annotations

import dataclasses
import difflib
import enum
import functools
import importlib
import math
import pkgutil
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import msgspec
from msgspec import Meta

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Hashable, Iterable, Mapping, Sequence

    from kubeloop.aio.clock import Clock
    from kubeloop.client.client import Client

    ReadSecret: TypeAlias = Callable[[str, str], Coroutine[Any, Any, Mapping[str, str]]]

REDACTED = "(redacted)"


class Role(enum.StrEnum):
    """What a trigger's quiet means: a Signal lets its target sleep, a Veto only does not prevent it."""

    SIGNAL = "Signal"
    VETO = "Veto"


class SecretUnavailable(Exception):
    """A Secret that a trigger names cannot be read; the message says why, and what to do."""


@dataclasses.dataclass(frozen=True, slots=True)
class TriggerReading:
    """What a trigger shows: a value, or why there is none.

    `span`: the seconds up to now that the value is about, 0 for a momentary one. `pending`: there is
    no value yet, and nothing is wrong: a rate needs two readings, and a target pods.
    """

    value: float = math.nan
    error: str = ""
    span: float = 0.0
    pending: bool = False

    @property
    def usable(self) -> bool:
        """Whether the value can be compared at all."""
        return not self.error and not math.isnan(self.value)


@dataclasses.dataclass(frozen=True, slots=True)
class ScrapeTarget:
    """A pod of the target; `ports` are its Service's target ports by name, in their order."""

    identity: str
    address: str
    ports: tuple[tuple[str, int], ...]
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
    """What a reader may know of a trigger's target.

    `key` is the trigger's own, from round to round. `asleep`: the target has no pods, and should not.
    `last_arrival`: when traffic last reached a resolver, as far as the leader knows, in seconds since 1970.
    """

    key: Hashable
    cooldown: float
    namespace: str = ""
    pods: Callable[[], Sequence[ScrapeTarget]] = tuple
    asleep: bool = False
    last_arrival: float = -math.inf


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ReaderSettings:
    """What a reader is made with; `variables` are those that its type names, where they are set.

    `secret` reads one by namespace and name, and raises SecretUnavailable. `client` has the operator's rights.
    """

    clock: Clock
    client: Client | None = None
    variables: Mapping[str, Any] = dataclasses.field(default_factory=dict, repr=False)
    secret: ReadSecret | None = None


class TriggerReader:
    """Reads all triggers of one type, many at once. A reader keeps what it shares between them."""

    async def read(self, metadata: Any, context: ReadContext) -> TriggerReading:
        """Return what one trigger shows now; what cannot be read is an error, not an exception."""
        raise NotImplementedError

    def forget(self, key: Hashable) -> None:
        """Drop what is kept of a trigger that is gone or was changed."""

    async def end_round(self) -> None:
        """Every trigger was read once, or the time for that is over."""

    async def close(self) -> None:
        """Close connections."""


Threshold = Annotated[
    float | str, Meta(description="The target is idle below it, and at 0; a number or a string.")
]


class TriggerMetadata(msgspec.Struct, rename="camel", frozen=True, gc=False, kw_only=True):
    """What every trigger has."""

    threshold: Threshold

    @property
    def look_seconds(self) -> float:
        """For how long the resolver must look for arrivals before the target sleeps; 0: as it always does."""
        return 0.0

    @property
    def vetoes(self) -> tuple[str, ...]:
        """Types that keep the target awake beside this one, where the installation can read them."""
        return ()

    def limit(self) -> float:
        """Return the threshold as a number, written as number or string. Raises ValueError."""
        try:
            limit = float(self.threshold)
        except ValueError:
            limit = math.nan
        if not math.isfinite(limit):
            raise ValueError(f"threshold {self.threshold!r} is not a number; write it like 0.5")
        return limit


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TriggerType:
    """One type of trigger.

    `variables`: the operator's environment variables that its reader needs, and what reads each (it
    raises ValueError). `redactions`: how
    metadata that may hold credentials is shown to others; the rest is shown as it is. `role`: where a
    trigger names none. `needs`: the variable without which it cannot be read.
    """

    name: str
    metadata: type[TriggerMetadata]
    reader: Callable[[ReaderSettings], TriggerReader]
    variables: Mapping[str, Callable[[str], Any]] = dataclasses.field(default_factory=dict)
    redactions: Mapping[str, Callable[[Any], Any]] = dataclasses.field(default_factory=dict)
    role: Role = Role.SIGNAL
    needs: str = ""

    @property
    def keys(self) -> tuple[str, ...]:
        """What metadata may have, as users write it."""
        return self.metadata.__struct_encode_fields__


@functools.cache
def trigger_types() -> dict[str, TriggerType]:
    """Return all types by name, for good: what is put in is a trigger like any other."""
    package = importlib.import_module(__package__)
    names = [found.name for found in pkgutil.iter_modules(package.__path__)]
    modules = [importlib.import_module(f"{__package__}.{name}") for name in names]
    found = [module.TRIGGER for module in modules if hasattr(module, "TRIGGER")]
    return {trigger.name: trigger for trigger in found}


def trigger_type(name: str) -> TriggerType:
    """Return one type. Raises ValueError that names the nearest."""
    if name not in trigger_types():
        raise ValueError(_unknown("trigger", name, trigger_types()))
    return trigger_types()[name]


def read_metadata(name: str, metadata: Mapping[str, Any]) -> TriggerMetadata:
    """Read a trigger's metadata. Raises ValueError naming the field and the remedy."""
    trigger = trigger_type(name)
    for key in metadata:
        if key not in trigger.keys:
            raise ValueError(f"{name} trigger: {_unknown('key', key, trigger.keys)}")
    try:
        found = msgspec.convert(metadata, trigger.metadata)
    except msgspec.ValidationError as error:
        wrong, _, place = str(error).partition(" - at `$.")
        key = place.rstrip("`")
        shown = key in metadata and key not in trigger.redactions
        where = f"{key} {metadata[key]!r:.80}: " if shown else f"{key}: " if key else ""
        raise ValueError(f"{name} trigger: {where}{wrong}") from None
    found.limit()
    return found


def _unknown(what: str, word: str, known: Iterable[str]) -> str:
    choices = sorted(known)
    (nearest,) = difflib.get_close_matches(word, choices, n=1, cutoff=0.0)
    return f"unknown {what} {word!r}; did you mean {nearest!r}? (known: {', '.join(choices)})"


def redacted_metadata(name: str, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return a trigger's metadata for others' eyes: only what is known to be no secret."""
    trigger = trigger_types().get(name)
    shown = {}
    for key, value in metadata.items():
        if trigger is None or key not in trigger.keys:
            shown[key] = REDACTED
        elif key in trigger.redactions:
            shown[key] = trigger.redactions[key](value)
        else:
            shown[key] = value
    return shown
