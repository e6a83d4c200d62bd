"""Logs of the programs: one JSON object a line, ours and the libraries' alike; at a terminal, text.

Libraries log through the standard library, so that their users choose; the programs log events with
key-value pairs, through structlog. Both end in one formatter. Whatever it is, nothing that looks
like a credential leaves: values under names of secrets, bearer and basic authorizations, JSON Web
Tokens, and user information in URLs are replaced, in messages, values and tracebacks.
"""

from __future__ import annotations

import logging
import re
import sys
from typing import TYPE_CHECKING, Any

import structlog

from elasti.api.parsing import misspelt_variables

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, MutableMapping

    from structlog.typing import Processor

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
    common: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
    ]
    structlog.configure(
        processors=[*common, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    terminal = sys.stderr.isatty()
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=common,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.format_exc_info,
                redact,
                _renderer(pretty=terminal if pretty is None else pretty, colors=terminal),
            ],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())


def redact(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Replace what looks like a credential, wherever in an event it is (structlog's processor)."""
    return {name: _redacted(name, value) for name, value in event.items()}


def without_secrets(text: str) -> str:
    """Return a text with credentials replaced."""
    return _SECRETS.sub(_replacement, text)


def _redacted(name: str, value: Any) -> Any:
    if _SECRET_NAME.search(name) and not _HARMLESS_NAME.search(name):
        return REDACTED
    match value:
        case str():
            return without_secrets(value)
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


def _renderer(*, pretty: bool, colors: bool) -> Processor:
    if not pretty:
        return structlog.processors.JSONRenderer()
    # The default shows the variables of every frame, and what they hold.
    return structlog.dev.ConsoleRenderer(
        colors=colors, exception_formatter=structlog.dev.plain_traceback
    )


def warn_of_variables(
    known: Collection[str], ignored: Collection[str], environ: Mapping[str, str]
) -> None:
    """Log the variables that have no effect: those of KubeElasti alone, and those nearly known."""
    log = structlog.get_logger(__name__)
    if names := sorted(name for name in ignored if environ.get(name)):
        log.warning("variables of KubeElasti are set that have no effect here", names=names)
    for name, nearest in misspelt_variables({*known, *ignored}, environ).items():
        log.warning("unknown variable; is it misspelt?", name=name, nearest=nearest)
