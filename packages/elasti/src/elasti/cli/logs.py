"""Logs of the programs: one JSON object a line, ours and the libraries' alike; at a terminal, text.

Libraries log through the standard library, so that their users choose; the programs log events with
key-value pairs, by `elasti.logger`. Both end in one formatter. Whatever it is, nothing that looks
like a credential leaves: values under names of secrets, bearer and basic authorizations, JSON Web
Tokens, and user information in URLs are replaced, in messages, values and tracebacks.
"""

from __future__ import annotations

import datetime as dt
import logging
import re
import sys
from collections.abc import Collection, Mapping
from typing import Any

import msgspec

from elasti.api.parsing import misspelt_variables
from elasti.logger import get_logger, keys_of
from kubeloop.objects.times import format_micro_time

REDACTED = "(redacted)"

_SECRET_NAME = re.compile(
    r"authorization|token|password|passwd|secret|cookie|api[-_]?key", re.IGNORECASE
)
# A name that only says where a secret is kept.
_HARMLESS_NAME = re.compile(r"(file|path|issuers?|name)\Z", re.IGNORECASE)
_SECRETS = re.compile(
    r"(?P<scheme>\b(?:bearer|basic)\s+)[\w.~+/=-]{6,}"
    r"|\beyJ[\w-]{6,}\.[\w-]{6,}\.[\w-]*"
    r"|(?P<url>://)[^\s/@:]+:[^\s/@]+(?=@)"
    r"|(?P<pair>\b(?:access_token|token|password|secret|api_?key)=)[^\s&\"']+",
    re.IGNORECASE,
)


def configure(*, level: str = "info", pretty: bool | None = None) -> None:
    """Set up logging for the whole process; call once, at its edge.

    `pretty`: text for a person instead of JSON; by default if the output is a terminal.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Lines(pretty=sys.stderr.isatty() if pretty is None else pretty))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())


class _Lines(logging.Formatter):
    def __init__(self, *, pretty: bool) -> None:
        super().__init__()
        self._write = _text if pretty else _json

    def format(self, record: logging.LogRecord) -> str:
        line = {
            **keys_of(record),
            "event": record.getMessage(),
            "logger": record.name,
            "level": record.levelname.lower(),
            "timestamp": format_micro_time(dt.datetime.fromtimestamp(record.created, dt.UTC)),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            line["stack"] = record.stack_info
        return self._write({name: _redacted(name, value) for name, value in line.items()})


def _json(line: dict[str, Any]) -> str:
    return msgspec.json.encode(line).decode()


def _text(line: dict[str, Any]) -> str:
    head = [line.pop(name) for name in ("timestamp", "level", "event", "logger")]
    below = [line.pop(name) for name in ("stack", "exception") if name in line]
    keys = " ".join(f"{name}={value!r}" for name, value in line.items())
    return "\n".join(["{} [{:<7}] {:<30} [{}] {}".format(*head, keys), *below])


def without_secrets(text: str) -> str:
    """Return a text with credentials replaced."""
    return _SECRETS.sub(_replacement, text)


def _redacted(name: str, value: Any) -> Any:
    if _SECRET_NAME.search(name) and not _HARMLESS_NAME.search(name):
        return REDACTED
    match value:
        case str():
            # JSON has no half characters, which names of files may have.
            return without_secrets(value.encode(errors="backslashreplace").decode())
        case bool() | int() | float() | None:
            return value
        case dict():
            return {str(key): _redacted(str(key), item) for key, item in value.items()}
        case list() | tuple() | set() | frozenset():
            return [_redacted("", item) for item in value]
        case _:
            return without_secrets(str(value))


def _replacement(match: re.Match[str]) -> str:
    kept = match["scheme"] or match["url"] or match["pair"] or ""
    return f"{kept}{REDACTED}"


def warn_of_variables(
    known: Collection[str], ignored: Collection[str], environ: Mapping[str, str]
) -> None:
    """Log the variables that have no effect: those of KubeElasti alone, and those nearly known."""
    log = get_logger(__name__)
    if names := sorted(name for name in ignored if environ.get(name)):
        log.warning("variables of KubeElasti are set that have no effect here", names=names)
    for name, nearest in misspelt_variables({*known, *ignored}, environ).items():
        log.warning("unknown variable; is it misspelt?", name=name, nearest=nearest)
