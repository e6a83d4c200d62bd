"""Environment variables as both programs read them: strictly, and all complaints at once. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from elasti.api.durations import parse_duration

Reader: TypeAlias = Callable[[str], Any]
Variables: TypeAlias = Mapping[str, tuple[str, Reader]]
"""From a variable's name to the setting that it gives, and how its text is read."""


class SettingsError(ValueError):
    """Variables that cannot be used; the message names each."""


def read_variables(variables: Variables, environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings that variables give; empty ones count as not there.

    Raises SettingsError with every complaint.
    """
    values: dict[str, Any] = {}
    complaints = []
    for name, (setting, read) in variables.items():
        if text := environ.get(name, ""):
            try:
                values[setting] = read(text)
            except ValueError as error:
                complaints.append(f"{name}: {error}")
    if complaints:
        raise SettingsError("; ".join(complaints))
    return values


def words(text: str) -> tuple[str, ...]:
    """Read a list with commas; what is repeated counts once."""
    return tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))


def port(text: str) -> int:
    """Read a port. Raises ValueError."""
    if not text.isdecimal() or not 0 < int(text) < 65536:
        raise ValueError(f"{text!r} is not a port; write a number from 1 to 65535")
    return int(text)


def count(text: str) -> int:
    """Read a number above zero. Raises ValueError."""
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"{text!r} is not a number above zero")
    return int(text)


def duration(text: str) -> float:
    """Read seconds, or a duration like '15s'. Raises ValueError."""
    seconds = float(text) if text.replace(".", "", 1).isdecimal() else parse_duration(text)
    if seconds < 0:
        raise ValueError(f"{text!r} is below zero; write a duration like '15s'")
    return seconds


def switch(text: str) -> bool:
    """Read a yes or a no. Raises ValueError."""
    answers = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
    if text.lower() not in answers:
        raise ValueError(f"{text!r} is neither 'true' nor 'false'")
    return answers[text.lower()]
