"""HTTP/1 heads: one strict grammar, matched in one pass at C speed.

One expression accepts exactly the head grammar of RFC 9112 and nothing else: no obs-fold, no bare CR
or LF, no space before a colon, no empty name. A second finds the few fields that decide how the
message goes on. Whatever the grammar accepts, other parsers must read the same way; whatever two
parsers could read differently is refused here, before a byte of it reaches a pod.
"""

from __future__ import annotations

import dataclasses
import enum
import re

MAX_HEAD = 64 * 1024

_TOKEN = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
_FIELDS = rb"((?:" + _TOKEN + rb":[\t\x20-\x7e\x80-\xff]*\r\n)*)"
_REQUEST = re.compile(
    rb"(" + _TOKEN + rb") ([\x21-\x7e\x80-\xff]+) HTTP/1\.([01])\r\n" + _FIELDS + rb"\r\n"
)
_RESPONSE = re.compile(
    rb"HTTP/1\.([01]) ([1-9][0-9][0-9])(?: [\t\x20-\x7e\x80-\xff]*)?\r\n" + _FIELDS + rb"\r\n"
)
# The start of a field line decides; the value is trimmed of optional white space.
_MATTERS = re.compile(
    rb"(?i)(?:\A|\r\n)(content-length|transfer-encoding|connection|upgrade|expect|host|te|trailer"
    rb"|keep-alive|proxy-connection|x-forwarded-for|x-forwarded-proto|x-forwarded-host|forwarded)"
    rb":[ \t]*([^\r]*?)[ \t]*(?=\r)"
)
_LENGTH = re.compile(rb"[0-9]{1,18}\Z")
_HOST = re.compile(rb"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._~!$&'()*+,;=%-]*)(?::[0-9]{0,5})?\Z")


class Framing(enum.Enum):
    """How a message's body ends."""

    NONE = "no body"
    LENGTH = "after content-length bytes"
    CHUNKED = "with the last chunk"
    CLOSE = "with the connection"


class HeadError(ValueError):
    """A head that is refused; `status` is the answer that its sender deserves."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


@dataclasses.dataclass(slots=True, eq=False)
class RequestHead:
    """A request up to and with its empty line; `end` is where the body starts in the bytes read."""

    method: bytes
    target: bytes
    minor: int
    fields: bytes
    end: int
    host: bytes | None
    framing: Framing
    length: int
    keep_alive: bool
    upgrade: bytes | None
    expects_continue: bool
    connection: tuple[bytes, ...]
    forwarded: dict[bytes, list[bytes]]


@dataclasses.dataclass(slots=True, eq=False)
class ResponseHead:
    """A response up to and with its empty line, read in the light of the request's method."""

    status: int
    minor: int
    fields: bytes
    end: int
    framing: Framing
    length: int
    keep_alive: bool
    upgrade: bytes | None
    connection: tuple[bytes, ...]


def parse_request(data: bytes, start: int = 0) -> RequestHead | None:
    """Read the request head at `start`; None where it is not complete. Raises HeadError."""
    match = _REQUEST.match(data, start)
    if match is None:
        _refuse_or_wait(data, start)
        return None
    if match.end() - start > MAX_HEAD:
        raise HeadError("the request head is larger than 64 KiB", 431)
    method, target, minor, fields = match.groups()
    found = _collect(fields)
    host = _single_host(found, minor)
    tokens = _tokens(found.get(b"connection", ()))
    framing, length = _request_framing(found, minor)
    upgrade = found.get(b"upgrade", (None,))[0] if b"upgrade" in tokens else None
    return RequestHead(
        method=method,
        target=target,
        minor=minor[0] - 48,
        fields=fields,
        end=match.end(),
        host=host,
        framing=framing,
        length=length,
        keep_alive=_keep_alive(tokens, minor),
        upgrade=upgrade,
        expects_continue=_expects_continue(found),
        connection=tokens,
        forwarded={name: values for name, values in found.items() if b"forwarded" in name},
    )


def parse_response(data: bytes, method: bytes, start: int = 0) -> ResponseHead | None:
    """Read the response head at `start`; None where it is not complete. Raises HeadError."""
    match = _RESPONSE.match(data, start)
    if match is None:
        _refuse_or_wait(data, start)
        return None
    minor, digits, fields = match.groups()
    status = int(digits)
    found = _collect(fields)
    tokens = _tokens(found.get(b"connection", ()))
    framing, length = _response_framing(found, status, method)
    return ResponseHead(
        status=status,
        minor=minor[0] - 48,
        fields=fields,
        end=match.end(),
        framing=framing,
        length=length,
        keep_alive=_keep_alive(tokens, minor) and framing is not Framing.CLOSE,
        upgrade=found.get(b"upgrade", (None,))[0] if status == 101 else None,
        connection=tokens,
    )


def _refuse_or_wait(data: bytes, start: int) -> None:
    """Raise where more bytes cannot make a head of what is there."""
    if data.find(b"\r\n\r\n", start) >= 0:
        raise HeadError("malformed HTTP/1 head")
    if len(data) - start > MAX_HEAD:
        raise HeadError("the head is larger than 64 KiB", 431)
    if data.find(b"\x00", start) >= 0 or re.search(rb"(?<!\r)\n", data[start:]):
        raise HeadError("malformed HTTP/1 head: bare line feed or NUL")


def _collect(fields: bytes) -> dict[bytes, list[bytes]]:
    found: dict[bytes, list[bytes]] = {}
    for name, value in _MATTERS.findall(fields):
        found.setdefault(name.lower(), []).append(value)
    return found


def _tokens(values: tuple[bytes, ...] | list[bytes]) -> tuple[bytes, ...]:
    if not values:
        return ()
    return tuple(token.strip().lower() for value in values for token in value.split(b","))


def _keep_alive(tokens: tuple[bytes, ...], minor: bytes) -> bool:
    if b"close" in tokens:
        return False
    return minor == b"1" or b"keep-alive" in tokens


def _single_host(found: dict[bytes, list[bytes]], minor: bytes) -> bytes | None:
    hosts = found.get(b"host")
    if hosts is None:
        if minor == b"1":
            raise HeadError("an HTTP/1.1 request needs a Host field")
        return None
    if len(hosts) > 1 or not _HOST.match(hosts[0]):
        raise HeadError("the Host field is repeated or malformed")
    return hosts[0]


def _request_framing(found: dict[bytes, list[bytes]], minor: bytes) -> tuple[Framing, int]:
    if b"transfer-encoding" in found:
        if minor == b"0" or b"content-length" in found:
            raise HeadError("Transfer-Encoding with Content-Length or in HTTP/1.0")
        if found[b"transfer-encoding"] != [b"chunked"] and _codings(found) != (b"chunked",):
            raise HeadError("the only transfer coding supported is chunked", 501)
        return Framing.CHUNKED, 0
    if b"content-length" in found:
        length = _length(found)
        return (Framing.LENGTH, length) if length else (Framing.NONE, 0)
    return Framing.NONE, 0


def _response_framing(
    found: dict[bytes, list[bytes]], status: int, method: bytes
) -> tuple[Framing, int]:
    if status < 200 or status in (204, 304) or method == b"HEAD":
        return Framing.NONE, 0
    if method == b"CONNECT" and status < 300:
        return Framing.NONE, 0
    if b"transfer-encoding" in found:
        if b"content-length" in found:
            raise HeadError("the response has both Transfer-Encoding and Content-Length", 502)
        return (Framing.CHUNKED, 0) if _codings(found)[-1] == b"chunked" else (Framing.CLOSE, 0)
    if b"content-length" in found:
        length = _length(found)
        return (Framing.LENGTH, length) if length else (Framing.NONE, 0)
    return Framing.CLOSE, 0


def _codings(found: dict[bytes, list[bytes]]) -> tuple[bytes, ...]:
    return _tokens(found[b"transfer-encoding"])


def _length(found: dict[bytes, list[bytes]]) -> int:
    values = set(found[b"content-length"])
    if len(values) != 1:
        raise HeadError("conflicting Content-Length fields")
    (value,) = values
    if len(found[b"content-length"]) > 1 or not _LENGTH.match(value):
        raise HeadError("Content-Length is repeated or not a decimal number")
    return int(value)


def _expects_continue(found: dict[bytes, list[bytes]]) -> bool:
    expectations = _tokens(found.get(b"expect", ()))
    if expectations and expectations != (b"100-continue",):
        raise HeadError("the only expectation supported is 100-continue", 417)
    return bool(expectations)
