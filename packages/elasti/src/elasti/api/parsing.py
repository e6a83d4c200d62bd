"""Text that people write, as values: Go's durations, and environment variables.

Durations are as Go writes them: `300ms`, `1h30m`, `-2s`. Variables are read strictly, and all
complaints are reported at once. Pure.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, TypeAlias
from urllib.parse import urlsplit

from elasti.api.defaults import LOWEST_DATA_PORT

_SECONDS_PER_UNIT = {
    "ns": 1e-9,
    "us": 1e-6,
    "µs": 1e-6,
    "μs": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "m": 60.0,
    "h": 3600.0,
}
NEAR = 0.85
"""How alike two names are, from 0 to 1, of which one may be the other misspelt."""
_SERVICE_LINK = re.compile(r"_(SERVICE_HOST|SERVICE_PORT\w*|PORT(_\d+_(TCP|UDP|SCTP)\w*)?)\Z")
_PORT_RANGE = re.compile(r"(\d{1,5})-(\d{1,5})\Z", re.ASCII)
_FEWEST_PORTS, _MOST_PORTS = 100, 40_000
_PART = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|μs|ms|s|m|h)")
_WHOLE = re.compile(rf"[+-]?(?:{_PART.pattern})+\Z")


def parse_duration(text: str) -> float:
    """Return the seconds; raises ValueError with an example if `text` is not a duration."""
    if text in {"0", "+0", "-0"}:
        return 0.0
    if not _WHOLE.match(text):
        raise ValueError(f"{text!r} is not a duration; write it like '8h', '90m' or '1h30m'")
    total = sum(float(number) * _SECONDS_PER_UNIT[unit] for number, unit in _PART.findall(text))
    return -total if text.startswith("-") else total


VariableReader: TypeAlias = Callable[[str], Any]
Variables: TypeAlias = Mapping[str, tuple[str, VariableReader]]
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


def misspelt_variables(known: Collection[str], environ: Iterable[str]) -> dict[str, str]:
    """Return the variables that are nearly one of the known, each with the nearest.

    Kubernetes sets variables for every Service of the namespace; those are not mistakes.
    """
    found = {}
    for name in sorted(set(environ) - set(known)):
        near = difflib.get_close_matches(name, known, n=1, cutoff=NEAR)
        if near and not _SERVICE_LINK.search(name):
            found[name] = near[0]
    return found


def is_http_url(text: str) -> bool:
    """Whether a request can be sent to a text unchanged: an http or https URL without a user."""
    try:
        parts = urlsplit(text)
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        return False
    plain = text.isascii() and text.isprintable() and " " not in text
    return bool(usable) and plain and "@" not in parts.netloc


def parse_list(text: str) -> tuple[str, ...]:
    """Read a list with commas; what is repeated counts once."""
    return tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))


def parse_port(text: str) -> int:
    """Read a port. Raises ValueError."""
    if not text.isdecimal() or not 0 < int(text) < 65536:
        raise ValueError(f"{text!r} is not a port; write a number from 1 to 65535")
    return int(text)


def parse_port_range(text: str) -> tuple[int, int]:
    """Read the first and the last of the resolvers' ports, such as 20000-59999. Raises ValueError."""
    found = _PORT_RANGE.match(text)
    first, last = (int(found[1]), int(found[2])) if found else (0, 0)
    wrong = "it is not FIRST-LAST" if found is None else ""
    if found and not LOWEST_DATA_PORT <= first <= last < 65536:
        wrong = (
            f"it does not rise within {LOWEST_DATA_PORT}-65535; below are the programs' own ports"
        )
    elif found and not _FEWEST_PORTS <= last - first + 1 <= _MOST_PORTS:
        wrong = f"it has {last - first + 1} ports, and not {_FEWEST_PORTS} to {_MOST_PORTS}"
    if wrong:
        raise ValueError(
            f"{text!r} is not a range of resolver ports: {wrong}; write one such as 30000-49999"
        )
    return first, last


def parse_count(text: str) -> int:
    """Read a number above zero. Raises ValueError."""
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"{text!r} is not a number above zero")
    return int(text)


def parse_seconds(text: str) -> float:
    """Read seconds, or a duration like '15s'. Raises ValueError."""
    seconds = float(text) if text.replace(".", "", 1).isdecimal() else parse_duration(text)
    if seconds < 0:
        raise ValueError(f"{text!r} is below zero; write a duration like '15s'")
    return seconds


def parse_bool(text: str) -> bool:
    """Read a yes or a no. Raises ValueError."""
    answers = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
    if text.lower() not in answers:
        raise ValueError(f"{text!r} is neither 'true' nor 'false'")
    return answers[text.lower()]
