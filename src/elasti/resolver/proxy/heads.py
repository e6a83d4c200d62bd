"""HTTP/1 heads: one strict grammar, matched in one pass at C speed.

One expression accepts exactly the head grammar of RFC 9112 and nothing else: no obs-fold, no bare CR
or LF, no space before a colon, no empty name. A second finds the few fields that decide how the
message goes on. Whatever the grammar accepts, other parsers must read the same way; whatever two
parsers could read differently is refused here, before a byte of it reaches a pod.
"""

from __future__ import annotations

import enum
import re
from typing import TypeAlias

MAX_HEAD = 64 * 1024

_TOKEN = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
_FIELDS = rb"(?:" + _TOKEN + rb":[\t\x20-\x7e\x80-\xff]*\r\n)*"
_REQUEST = re.compile(
    rb"(" + _TOKEN + rb") ([\x21-\x7e\x80-\xff]+) HTTP/1\.([01])(\r\n)" + _FIELDS + rb"\r\n"
)
_RESPONSE = re.compile(
    rb"HTTP/1\.([01]) ([1-9][0-9][0-9])(?: [\t\x20-\x7e\x80-\xff]*)?(\r\n)" + _FIELDS + rb"\r\n"
)
# The look at the first letter keeps the common line from trying every name: seven times faster.
_MATTERS = re.compile(
    rb"\r\n(?=[cCtTuUeEhHkKpPxXfF])(?i:(content-length|transfer-encoding|connection|upgrade|expect"
    rb"|host|te|trailer|keep-alive|proxy-connection|x-forwarded-for|x-forwarded-proto"
    rb"|x-forwarded-host|forwarded)):[ \t]*([^\r]*)"
)
_FORWARDED = frozenset((b"x-forwarded-proto", b"x-forwarded-host"))
_NO_TOKENS: frozenset[bytes] = frozenset()
_HOP_BY_HOP = frozenset((b"connection", b"keep-alive", b"proxy-connection", b"te", b"upgrade"))
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


Found: TypeAlias = dict[bytes, list[bytes]]


class RequestHead:
    """A request up to and with its empty line; `end` is where the body starts in the bytes read."""

    __slots__ = (
        "connection", "end", "expects_continue", "forwarded", "framing", "has_hop_by_hop", "host",
        "keep_alive", "length", "method", "minor", "raw", "target", "upgrade",
    )  # fmt: skip

    def __init__(self, match: re.Match[bytes], found: Found) -> None:
        method, target, minor, _ = match.groups()
        self.method: bytes = method
        self.target: bytes = target
        self.minor = 1 if minor == b"1" else 0
        self.raw: bytes = match.group()
        self.end = match.end()
        self.host = _single_host(found, self.minor)
        self.framing, self.length = _request_framing(found, self.minor)
        self.connection = _tokens(found.get(b"connection", ()))
        self.keep_alive = _keep_alive(self.connection, self.minor)
        self.upgrade = (
            found[b"upgrade"][0] if b"upgrade" in self.connection & found.keys() else None
        )
        self.expects_continue = b"expect" in found and _expects_continue(found)
        self.has_hop_by_hop = not _HOP_BY_HOP.isdisjoint(found)
        self.forwarded = found.keys() & _FORWARDED


class ResponseHead:
    """A response up to and with its empty line, read in the light of the request's method."""

    __slots__ = (
        "connection", "end", "framing", "has_hop_by_hop", "keep_alive", "length", "minor", "raw",
        "status", "upgrade",
    )  # fmt: skip

    def __init__(self, match: re.Match[bytes], found: Found, method: bytes) -> None:
        minor, digits, _ = match.groups()
        self.status = int(digits)
        self.minor = 1 if minor == b"1" else 0
        self.raw: bytes = match.group()
        self.end = match.end()
        self.framing, self.length = _response_framing(found, self.status, method)
        self.connection = _tokens(found.get(b"connection", ()))
        keep = _keep_alive(self.connection, self.minor)
        self.keep_alive = keep and self.framing is not Framing.CLOSE
        self.upgrade = found[b"upgrade"][0] if self.status == 101 and b"upgrade" in found else None
        self.has_hop_by_hop = not _HOP_BY_HOP.isdisjoint(found)


def parse_request(data: bytes, start: int = 0) -> RequestHead | None:
    """Read the request head at `start`; None where it is not complete. Raises HeadError."""
    match = _REQUEST.match(data, start)
    if match is None:
        _refuse_or_wait(data, start)
        return None
    if match.end() - start > MAX_HEAD:
        raise HeadError("the request head is larger than 64 KiB", 431)
    return RequestHead(match, _collect(data, match.start(4), match.end()))


def parse_response(data: bytes, method: bytes, start: int = 0) -> ResponseHead | None:
    """Read the response head at `start`; None where it is not complete. Raises HeadError."""
    match = _RESPONSE.match(data, start)
    if match is None:
        _refuse_or_wait(data, start)
        return None
    return ResponseHead(match, _collect(data, match.start(3), match.end()), method)


def _refuse_or_wait(data: bytes, start: int) -> None:
    """Raise where more bytes cannot make a head of what is there."""
    if data.find(b"\r\n\r\n", start) >= 0:
        raise HeadError("malformed HTTP/1 head")
    if len(data) - start > MAX_HEAD:
        raise HeadError("the head is larger than 64 KiB", 431)
    if data.find(b"\x00", start) >= 0 or re.search(rb"(?<!\r)\n", data[start:]):
        raise HeadError("malformed HTTP/1 head: bare line feed or NUL")


def _collect(data: bytes, start: int, end: int) -> Found:
    """Find the fields that matter between the end of the first line and the end of the head."""
    found: Found = {}
    for name, value in _MATTERS.findall(data, start, end):
        name = name.lower()  # noqa: PLW2901  (a second name for it would cost as much to read)
        if name in found:
            found[name].append(value.rstrip(b" \t"))
        else:
            found[name] = [value.rstrip(b" \t")]
    return found


def _tokens(values: tuple[bytes, ...] | list[bytes]) -> frozenset[bytes]:
    if not values:
        return _NO_TOKENS
    return frozenset(token.strip().lower() for value in values for token in value.split(b","))


def _keep_alive(tokens: frozenset[bytes], minor: int) -> bool:
    if b"close" in tokens:
        return False
    return minor == 1 or b"keep-alive" in tokens


def _single_host(found: Found, minor: int) -> bytes | None:
    hosts = found.get(b"host")
    if hosts is None:
        if minor == 1:
            raise HeadError("an HTTP/1.1 request needs a Host field")
        return None
    if len(hosts) > 1 or not _HOST.match(hosts[0]):
        raise HeadError("the Host field is repeated or malformed")
    return hosts[0]


def _request_framing(found: Found, minor: int) -> tuple[Framing, int]:
    if b"transfer-encoding" in found:
        if minor == 0 or b"content-length" in found:
            raise HeadError("Transfer-Encoding with Content-Length or in HTTP/1.0")
        if _codings(found) != [b"chunked"]:
            raise HeadError("the only transfer coding supported is chunked", 501)
        return Framing.CHUNKED, 0
    if b"content-length" in found:
        length = _length(found)
        return (Framing.LENGTH, length) if length else (Framing.NONE, 0)
    return Framing.NONE, 0


def _response_framing(found: Found, status: int, method: bytes) -> tuple[Framing, int]:
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


def _codings(found: Found) -> list[bytes]:
    values = found[b"transfer-encoding"]
    return [coding.strip().lower() for value in values for coding in value.split(b",")]


def _length(found: Found) -> int:
    values = set(found[b"content-length"])
    if len(values) != 1:
        raise HeadError("conflicting Content-Length fields")
    (value,) = values
    if len(found[b"content-length"]) > 1 or not _LENGTH.match(value):
        raise HeadError("Content-Length is repeated or not a decimal number")
    return int(value)


def _expects_continue(found: Found) -> bool:
    if _tokens(found[b"expect"]) != {b"100-continue"}:
        raise HeadError("the only expectation supported is 100-continue", 417)
    return True
