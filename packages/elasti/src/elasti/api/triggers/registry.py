"""The definition of a trigger's type, and the registry of all types. Pure.

A type is a Struct for its metadata, from which validation and the CRD's schema follow, and a
`TriggerType`, in any module of this package. Its reader is the module of its name in `elasti.triggers`,
which only the operator loads. The registry finds the types; no other module lists them.
"""

from __future__ import annotations

import dataclasses
import difflib
import enum
import functools
import importlib
import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec

from elasti.api.descriptions import about
from elasti.api.rbac import PolicyRule

REDACTED = "(redacted)"


class Role(enum.StrEnum):
    """The meaning of a quiet trigger: a Signal lets its target sleep, a Veto only does not prevent it."""

    SIGNAL = "Signal"
    VETO = "Veto"


Threshold = Annotated[
    float | str, about("The target is idle below this value, and at 0; a number or a string.")
]


class TriggerMetadata(msgspec.Struct, rename="camel", frozen=True, gc=False, kw_only=True):
    """The metadata that every trigger has."""

    threshold: Threshold

    @property
    def look_seconds(self) -> float:
        """For how long the resolver must look for arrivals before the target sleeps; 0: as it always does."""
        return 0.0

    @property
    def vetoes(self) -> tuple[str, ...]:
        """Types that keep the target awake beside this one, if the installation can read them."""
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
    """One type of trigger."""

    name: str
    metadata: type[TriggerMetadata]
    role: Role = Role.SIGNAL
    """The role of a trigger that does not name one."""
    variables: Mapping[str, Callable[[str], Any]] = dataclasses.field(default_factory=dict)
    """The operator's environment variables that its reader needs, and their parsers (which raise ValueError)."""
    needs: str = ""
    """The variable without which its reader cannot work."""
    redactions: Mapping[str, Callable[[Any], Any]] = dataclasses.field(default_factory=dict)
    """How metadata that may hold credentials is shown to others; all other metadata is shown unchanged."""
    rules: tuple[PolicyRule, ...] = ()
    """Rights that its reader needs at the API server, in every watched namespace."""

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys of its metadata, as users write them."""
        return self.metadata.__struct_encode_fields__

    @property
    def is_self_sufficient(self) -> bool:
        """Whether it lets a target sleep without metadata, variables or another trigger."""
        required = _required_keys(self.metadata)
        return self.role is Role.SIGNAL and not self.needs and not required


@functools.cache
def _required_keys(metadata: type[TriggerMetadata]) -> tuple[str, ...]:
    # Every reconcile reads metadata, and to ask msgspec for the fields takes forty times as long.
    fields = msgspec.structs.fields(metadata)
    return tuple(field.encode_name for field in fields if field.required)


@functools.cache
def trigger_types() -> dict[str, TriggerType]:
    """Return all types by name. The same dict each time: a type that is added is like any other."""
    names = [found.stem for found in Path(__file__).parent.glob("[!_]*.py")]
    modules = [importlib.import_module(f"{__package__}.{name}") for name in names]
    values = [value for module in modules for value in vars(module).values()]
    found = {value.name: value for value in values if isinstance(value, TriggerType)}
    return dict(sorted(found.items()))


def trigger_type(name: str) -> TriggerType:
    """Return one type. Raises ValueError that names the nearest."""
    if name not in trigger_types():
        raise ValueError(_unknown("trigger", name, trigger_types()))
    return trigger_types()[name]


def self_sufficient_type() -> str:
    """Return the name of a type that needs nothing else: the example in messages."""
    return next(name for name, kind in trigger_types().items() if kind.is_self_sufficient)


def read_metadata(name: str, metadata: Mapping[str, Any]) -> TriggerMetadata:
    """Read a trigger's metadata. Raises ValueError naming the field and the remedy."""
    trigger = trigger_type(name)
    for key in metadata:
        if key not in trigger.keys:
            raise ValueError(f"{name} trigger: {_unknown('key', key, trigger.keys)}")
    for key in _required_keys(trigger.metadata):
        if key not in metadata:
            raise ValueError(f"{name} trigger: metadata.{key} is required; add it")
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
    """Return a trigger's metadata for others to see: only values that are known not to be secret."""
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
