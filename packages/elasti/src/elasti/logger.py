"""Key-value events on the standard library's logging: a constant message, and keys beside it.

    _log = get_logger(__name__)
    _log.info("target sleeps", namespace=key.namespace, name=key.name)

What is `bound` belongs to every line of the task, the libraries' too. `elasti.cli.logs` writes the lines.
"""

from __future__ import annotations

import contextlib
import contextvars
import logging
from collections.abc import Iterator, Mapping, MutableMapping
from types import MappingProxyType
from typing import Any

_bound: contextvars.ContextVar[Mapping[str, Any]] = contextvars.ContextVar(
    "bound", default=MappingProxyType({})
)


class EventLogger(logging.LoggerAdapter[logging.Logger]):
    """Takes any keys, beside those that logging knows: `exc_info` is an exception."""

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Put the keys where the formatter finds them."""
        return msg, {"exc_info": kwargs.pop("exc_info", None), "extra": {"keys": kwargs}}


def get_logger(name: str) -> EventLogger:
    """Return the logger of a module."""
    return EventLogger(logging.getLogger(name))


def keys_of(record: logging.LogRecord) -> dict[str, Any]:
    """Return a line's own keys and those that are bound now."""
    return {**_bound.get(), **getattr(record, "keys", {})}


def bind(**keys: Any) -> None:
    """Give these keys to every later line of this task."""
    _bound.set({**_bound.get(), **keys})


@contextlib.contextmanager
def bound(**keys: Any) -> Iterator[None]:
    """Give these keys to every line of the block."""
    token = _bound.set({**_bound.get(), **keys})
    try:
        yield
    finally:
        _bound.reset(token)
