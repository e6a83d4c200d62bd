"""What a request for a log asks for. Pure."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING

from elasti.devcluster.kubelet.logs.reading import LogOptions
from kubeloop.objects.times import parse_time

if TYPE_CHECKING:
    from collections.abc import Mapping


class LogError(Exception):
    """A log that cannot be read; `code` is the HTTP status that says so."""

    def __init__(self, message: str, *, code: int = 400) -> None:
        super().__init__(message)
        self.code = code


def read_options(query: Mapping[str, str], *, now: dt.datetime) -> LogOptions:
    """Read the query of a log request. Raises LogError that names the parameter."""
    return LogOptions(
        follow=_flag(query, "follow"),
        previous=_flag(query, "previous"),
        timestamps=_flag(query, "timestamps"),
        tail=_number(query, "tailLines", least=0),
        since=_since(query, now),
        limit=_number(query, "limitBytes", least=1),
    )


def _since(query: Mapping[str, str], now: dt.datetime) -> dt.datetime | None:
    seconds = _number(query, "sinceSeconds", least=1)
    text = query.get("sinceTime", "")
    if seconds is not None and text:
        raise LogError("at most one of `sinceTime` or `sinceSeconds` may be specified")
    if seconds is not None:
        return now - dt.timedelta(seconds=seconds)
    if not text:
        return None
    try:
        return parse_time(text)
    except ValueError as error:
        raise LogError(f"sinceTime: {error}") from error


def _flag(query: Mapping[str, str], name: str) -> bool:
    return query.get(name, "").lower() in ("true", "1")


def _number(query: Mapping[str, str], name: str, *, least: int) -> int | None:
    text = query.get(name, "")
    if not text:
        return None
    if not text.lstrip("-").isdecimal() or int(text) < least:
        raise LogError(f"{name}: {text!r} is not a number of at least {least}")
    return int(text)
