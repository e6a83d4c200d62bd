"""The meaning of a response: success, a typed refusal, or not Kubernetes at all; and its warnings.

A refusal is a `Status` document and becomes the typed error of its reason. API servers and the
aggregated servers behind them also refuse in plain text, or with no body (an unknown path, too
many requests, a backend that is gone): that becomes the typed error of its code. Everything else,
HTML above all, comes from something that stands where an API server should, and is a
`ProtocolError` that says what came and what to check.

Warnings (deprecated versions, unknown fields) come as `Warning: 299 - "text"` headers (RFC 7234),
with every response again. Each text is logged once per client, and is the record's attribute
`warning`, for programs that show it to people.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import logging
import re
from collections.abc import Iterable
from http import HTTPStatus

import msgspec

from kubeloop.client.errors import (
    BY_CODE,
    KubeError,
    ProtocolError,
    Status,
    error_from_status,
    readable,
)

_EXCERPT = 200
_HTML = re.compile(rb"\s*<(!doctype|html|head|body|\?xml)", re.IGNORECASE)
_REASONS = {code: kind.__name__ for code, kind in BY_CODE.items()} | {409: "", 504: "Timeout"}
_WARNING = re.compile(r'\s*(\d{3})\s+(?:"(?:[^"\\]|\\.)*"|\S+)\s+"((?:[^"\\]|\\.)*)"[^,]*(?:,|$)')
_ESCAPE = re.compile(r"\\(.)")
_REMEMBERED = 1000


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """A whole answer. Header names are lower case; a name may repeat."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes
    url: str

    @property
    def ok(self) -> bool:
        """Whether the server did what it was asked."""
        return 200 <= self.status < 300

    def header(self, name: str) -> str:
        """Return a header's first value, empty if it is absent."""
        return next((value for key, value in self.headers if key == name), "")

    def header_values(self, name: str) -> list[str]:
        """Return every value of a header."""
        return [value for key, value in self.headers if key == name]


class _StatusBody(msgspec.Struct):
    kind: str
    status: str = ""


def error_from_response(response: Response, *, now: dt.datetime) -> KubeError:
    """Return the error that an answer other than success stands for."""
    retry_after = parse_retry_after(response.header("retry-after"), now=now)
    status = _decode_status(response)
    if status is None and _is_plain(response):
        status = _plain_status(response)
    if status is not None:
        return error_from_status(status, retry_after=retry_after)
    return not_kubernetes(response, retry_after=retry_after)


def not_kubernetes(response: Response, *, retry_after: float | None = None) -> ProtocolError:
    """Return the error for a body that no API server writes."""
    return ProtocolError(
        f"{response.url} answered HTTP {response.status} with {_describe(response)};"
        f" {_remedy(response)}",
        code=response.status,
        retry_after=retry_after,
    )


def undecodable(response: Response, error: Exception) -> ProtocolError:
    """Return the error for a success whose body is not the object that was asked for."""
    if _HTML.match(response.body) or not response.body.strip():
        return not_kubernetes(response)
    return ProtocolError(
        f"{response.url} answered HTTP {response.status} with {_describe(response)},"
        f" which cannot be read as the object asked for: {error}; {_remedy(response)}",
        code=response.status,
    )


def parse_retry_after(value: str, *, now: dt.datetime) -> float | None:
    """Return the seconds that a Retry-After header asks for, given as a number or as a date.

    None if it is absent or unreadable; 0 for a date that has passed.
    """
    value = value.strip()
    if value.isascii() and value.isdigit():
        return float(value)
    if not value:
        return None
    from email.utils import parsedate_to_datetime  # noqa: PLC0415 -- half a MiB for a rare header

    try:
        moment = parsedate_to_datetime(value)
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=dt.UTC)
    return max(0.0, (moment - now).total_seconds())


def _decode_status(response: Response) -> Status | None:
    try:
        if msgspec.json.decode(response.body, type=_StatusBody).kind != "Status":
            return None
        status = msgspec.json.decode(response.body, type=Status)
    except msgspec.MsgspecError:
        return None
    # The HTTP code is what a server means where its own document forgets it.
    return status if status.code else msgspec.structs.replace(status, code=response.status)


def _is_plain(response: Response) -> bool:
    """Whether the body is the short text, or nothing, that servers refuse with."""
    if response.status == 429:
        return True
    if response.status < 400 or _HTML.match(response.body):
        return False
    return not response.body.strip() or response.header("content-type").startswith("text/plain")


def _plain_status(response: Response) -> Status:
    text = _first_characters(response.body).strip()
    return Status(
        status="Failure",
        code=response.status,
        reason=_REASONS.get(response.status, ""),
        message=f"{text or _phrase(response.status)} (HTTP {response.status} from {response.url})",
    )


def _describe(response: Response) -> str:
    if not response.body.strip():
        return "an empty body"
    kind = response.header("content-type") or "no content type"
    return f"a body of {len(response.body)} bytes ({kind}): {_first_characters(response.body)!r}"


def _first_characters(body: bytes) -> str:
    text = body[: 4 * _EXCERPT].decode("utf-8", "replace")
    return text if len(text) <= _EXCERPT else text[:_EXCERPT] + "…"


def _remedy(response: Response) -> str:
    if 300 <= response.status < 400:
        where = response.header("location") or "nowhere"
        return f"it redirects to {where}, which is not followed: is the server's URL right?"
    if response.status in {502, 503, 504}:
        return "a proxy or load balancer seems to have no API server behind it at the moment"
    if response.status == 407:
        return "the proxy wants credentials: put them into proxy-url"
    if response.body.lstrip().startswith((b"{", b"[")):
        return "is the answer cut short, or is this another kind of API?"
    return "is this an API server's URL, and does a proxy or a login page stand in between?"


def _phrase(code: int) -> str:
    try:
        return HTTPStatus(code).phrase
    except ValueError:
        return "refused"


_warning_log = logging.getLogger("kubeloop.client.warnings")


def parse_warnings(value: str) -> list[str]:
    """Return the texts of code 299 in one header; what is not well formed is skipped."""
    return [_ESCAPE.sub(r"\1", match[2]) for match in _WARNING.finditer(value) if match[1] == "299"]


class WarningLog:
    """Logs each warning the first time that it comes."""

    def __init__(self, *, logger: logging.Logger = _warning_log) -> None:
        self._log = logger
        self._seen: set[str] = set()

    def note(self, headers: Iterable[str], *, request: str) -> None:
        """Take the Warning headers of one answer."""
        for header in headers:
            for text in parse_warnings(header):
                self._once(text, request)

    def _once(self, text: str, request: str) -> None:
        if text in self._seen or len(self._seen) >= _REMEMBERED:
            return
        self._seen.add(text)
        text = readable(text)
        self._log.warning("API server warns about %s: %s", request, text, extra={"warning": text})
