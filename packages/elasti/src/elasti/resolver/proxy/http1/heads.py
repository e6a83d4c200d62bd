"""HTTP/1 heads: one strict grammar, matched in one pass at C speed.

One expression accepts exactly the head grammar of RFC 9112: no obs-fold, no bare CR or LF, no space before a
colon, no empty name. A second finds the few fields that decide how the message continues. Other parsers must read
accepted heads in the same way. A head that two parsers could read differently is refused before a byte of it
reaches a pod. One leniency: a target may have bytes above 0x7f, since most servers accept them and they cannot
change where it ends.

In most heads only the Host matters, or the length of a response, and perhaps `Connection: keep-alive` and what an
ingress adds. For these a second copy of the grammar excludes all other fields that matter, so that one match
suffices. Other heads go through the careful readers. Both must agree, and a test compares them.
"""

from __future__ import annotations

import enum
import re
from typing import TypeAlias

MAX_HEAD = 64 * 1024

# Possessive quantifiers do not backtrack, so matching takes linear time.
_TOKEN = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]++"
_DASHED_TOKEN = _TOKEN.replace(b"_", b"")
_FIELDS = rb"(?:" + _TOKEN + rb":[\t\x20-\x7e\x80-\xff]*+\r\n)*+"
_REQUEST_LINE = rb"(" + _TOKEN + rb") ([\x21-\x7e\x80-\xff]++) HTTP/1\.([01])\r\n"
_REQUEST = re.compile(_REQUEST_LINE + _FIELDS + rb"\r\n")
# Most requests have no field name with an underscore, and need no search for lookalikes.
_DASHED_REQUEST = re.compile(_REQUEST_LINE + _FIELDS.replace(_TOKEN, _DASHED_TOKEN) + rb"\r\n")
_RESPONSE = re.compile(
    rb"HTTP/1\.([01]) ([1-9][0-9][0-9])(?: [\t\x20-\x7e\x80-\xff]*+)?+\r\n" + _FIELDS + rb"\r\n"
)
# The lookahead keeps common lines from trying every name: seven times faster.
_MATTERS = re.compile(
    rb"\r\n(?=[cCtTuUeEhHkKpPxXfF])(?i:(content-length|transfer-encoding|connection|upgrade|expect"
    rb"|host|te|trailer|keep-alive|proxy-connection|x-forwarded-(?:for|proto|host)"
    rb"|forwarded|x-elasti-wait)):[ \t]*([^\r]*)"
)
# CGI and WSGI servers turn names into variables, and take an underscore for a dash.
_LOOKALIKE = re.compile(
    rb"\r\n(?=[^:\r_]*_)(?i:(content[-_]length|transfer[-_]encoding|keep[-_]alive"
    rb"|proxy[-_]connection|x[-_](?:forwarded|remote|ssl|auth[-_]request)[-_][-\w]+"
    rb"|(?:x[-_](?:real|client)|true[-_]client|cf[-_]connecting)[-_]ip|remote[-_]user)):"
)
# Fields that decide nothing; the first letter keeps common lines from trying every name.
_IDLE_KEEP_ALIVE = rb"|[Cc]onnection: ?[Kk]eep-[Aa]live\r\n"
_BORING_IN_REQUEST = (
    rb"(?:(?![cCtTuUeEhHkKpPxXfF](?i:ontent-length|ransfer-encoding|onnection|pgrade|xpect|ost|e"
    rb"|eep-alive|roxy-connection|-forwarded-(?:for|proto|host)|orwarded|-elasti-wait):)"
    + _DASHED_TOKEN + rb":[\t\x20-\x7e\x80-\xff]*+\r\n" + _IDLE_KEEP_ALIVE + rb")*+"
)  # fmt: skip
_BORING_IN_RESPONSE = (
    rb"(?:(?![cCtTuUkKpP](?i:ontent-length|ransfer-encoding|onnection|pgrade|e|eep-alive"
    rb"|roxy-connection):)"
    + _TOKEN + rb":[\t\x20-\x7e\x80-\xff]*+\r\n" + _IDLE_KEEP_ALIVE + rb")*+"
)  # fmt: skip
_HOST_VALUE = rb"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._~!$&'()*+,;=%-]*+)(?::[0-9]{0,5})?"
_PLAIN_REQUEST = re.compile(
    rb"(" + _TOKEN + rb") (/[\x21-\x7e\x80-\xff]*+) HTTP/1\.1\r\n"
    + _BORING_IN_REQUEST + rb"[Hh]ost: ?(" + _HOST_VALUE + rb")\r\n" + _BORING_IN_REQUEST
    + rb"(\r\n)?"
)  # fmt: skip
# The rest of a request that an ingress passed on: from its first X-Forwarded field.
_PROXIED_REST = re.compile(
    _BORING_IN_REQUEST.replace(rb"|-forwarded-(?:for|proto|host)", b"") + rb"\r\n"
)
# Statuses with a body, which may be empty: not 1xx, 204 or 304.
_PLAIN_RESPONSE = re.compile(
    rb"HTTP/1\.1 ([23](?:0[0-35-9]|[1-9][0-9])|[45][0-9][0-9])(?: [\t\x20-\x7e\x80-\xff]*+)?+\r\n"
    + _BORING_IN_RESPONSE
    + rb"(?i:content-length): ?([0-9]{1,18})\r\n"
    + _BORING_IN_RESPONSE
    + rb"\r\n"
)
# One line of each, as an ingress writes them: the address of the resolver's client follows the last one's.
_PROXIED = re.compile(
    rb"\r\n(?i:(x-forwarded-(?:for|proto|host))):[ \t]*+([^\r]*[^\r \t])?[ \t]*+(?=\r)"
)
# Fields that proxies set.
_FORWARDED = frozenset(
    (b"forwarded", b"x-forwarded-for", b"x-forwarded-proto", b"x-forwarded-host")
)
_SLASH = 0x2F
_AUTHORITY = re.compile(rb"(?i:https?)://([^/?#]*)")
_NO_TOKENS: frozenset[bytes] = frozenset()
_KEEP_ALIVE = frozenset((b"keep-alive",))
_BODILESS = frozenset((b"HEAD", b"CONNECT"))
_HOP_BY_HOP = frozenset((b"keep-alive", b"proxy-connection", b"te", b"upgrade"))
_LENGTH = re.compile(rb"[0-9]{1,18}\Z")
_LENGTH_LINE = re.compile(rb"(?<=\r\n)(?i:content-length):[^\r]*\r\n")
_HOST = re.compile(_HOST_VALUE + rb"\Z")
_BAD_BYTE = re.compile(rb"\x00|(?<!\r)\n")


class Framing(enum.Enum):
    """How a message's body ends."""

    NONE = "no body"
    LENGTH = "after content-length bytes"
    CHUNKED = "with the last chunk"
    CLOSE = "with the connection"


_NONE, _CLOSE = Framing.NONE, Framing.CLOSE


class HeadError(ValueError):
    """A head that is refused with `status`."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


Found: TypeAlias = dict[bytes, list[bytes]]


class Http1RequestHead:
    """A request up to its empty line, which is included; `end` is where the body starts in the bytes read.

    `edited`: fields must be dropped on the way to a pod; `Connection: keep-alive` alone may stay. `forwarded`:
    fields of proxies, to be merged or dropped. `watches`: a waiting page asks for the wake-up's progress.
    """

    __slots__ = (
        "connection", "edited", "end", "expects_continue", "forwarded", "framing", "host",
        "keep_alive", "length", "method", "minor", "raw", "target", "upgrade", "watches",
    )  # fmt: skip

    def __init__(self, match: re.Match[bytes]) -> None:
        self.raw, self.method, self.target, minor = match.group(0, 1, 2, 3)
        self.minor = 1 if minor == b"1" else 0
        self.end = match.end()
        self.framing, self.length = _NONE, 0
        self.host: bytes | None = None
        self.upgrade: bytes | None = None
        self.connection = self.forwarded = _NO_TOKENS
        self.keep_alive = True
        self.expects_continue = self.edited = self.watches = False

    def field(self, name: bytes) -> bytes | None:
        """Return a field's value by its lower-case name; None if absent. Not for the hot path."""
        return field_in(self.raw, name)


class PlainRequestHead(Http1RequestHead):
    """An HTTP/1.1 request without a body, in which only the Host matters."""

    __slots__ = ()

    minor = 1
    framing, length = Framing.NONE, 0
    upgrade = None
    connection = forwarded = _NO_TOKENS
    keep_alive = True
    expects_continue = edited = watches = False

    def __init__(self, match: re.Match[bytes]) -> None:  # the rest is the class's
        self.raw, self.method, self.target, self.host = match.group(0, 1, 2, 3)
        self.end = match.end()


class ProxiedRequestHead(Http1RequestHead):
    """A plain request that an ingress passed on; `chain` is where the list of X-Forwarded-For ends, or 0."""

    __slots__ = ("chain",)

    minor = 1
    framing, length = Framing.NONE, 0
    upgrade = None
    connection = _NO_TOKENS
    keep_alive = True
    expects_continue = edited = watches = False

    def __init__(self, match: re.Match[bytes], rest: re.Match[bytes]) -> None:
        before, self.method, self.target, self.host = match.group(0, 1, 2, 3)
        self.raw = before + rest[0]
        self.end = rest.end()
        self.chain = 0


class Http1ResponseHead:
    """A response up to its empty line, which is included; its framing depends on the request's method.

    `edited`: fields must be dropped, or the version changed from HTTP/1.0.
    """

    __slots__ = (
        "connection", "edited", "end", "framing", "keep_alive", "length", "minor", "raw", "status",
        "upgrade",
    )  # fmt: skip

    def __init__(self, match: re.Match[bytes]) -> None:
        self.raw, minor, digits = match.group(0, 1, 2)
        self.status = int(digits)
        self.minor = 1 if minor == b"1" else 0
        self.end = match.end()
        self.framing, self.length = _CLOSE, 0
        self.upgrade: bytes | None = None
        self.connection = _NO_TOKENS
        self.keep_alive = True
        self.edited = False


class PlainResponseHead(Http1ResponseHead):
    """An HTTP/1.1 response in which only the length matters, with or without keep-alive."""

    __slots__ = ()

    minor = 1
    framing = Framing.LENGTH
    upgrade = None
    connection = _KEEP_ALIVE
    keep_alive = True
    edited = False

    def __init__(self, match: re.Match[bytes]) -> None:  # the rest is the class's
        self.raw, status, length = match.group(0, 1, 2)
        self.status, self.length = int(status), int(length)
        self.end = match.end()


def parse_request(data: bytes, start: int = 0) -> Http1RequestHead | None:
    """Parse the request head at `start`; None if it is incomplete. Raises HeadError."""
    plain = _PLAIN_REQUEST.match(data, start)
    if plain is not None:
        short = PlainRequestHead(plain) if plain[4] else _read_proxied(data, plain)
        if short is not None and short.end - start <= MAX_HEAD:
            return short
    # RFC 9112, 2.2: empty lines before a request are ignored.
    while data.startswith(b"\r\n", start):
        start += 2
    dashed = _DASHED_REQUEST.match(data, start)
    match = dashed or _REQUEST.match(data, start)
    if match is None:
        refuse_or_wait(data, start)
        return None
    head = Http1RequestHead(match)
    if head.end - start > MAX_HEAD:
        raise HeadError("the request head is larger than 64 KiB", 431)
    _read_request(head, _collect(_MATTERS.findall(data, match.end(3), head.end)))
    if dashed is None:
        # Dropped, as earlier proxies' fields are.
        head.forwarded |= {name.lower() for name in _LOOKALIKE.findall(head.raw)}
    return head


def parse_response(data: bytes, method: bytes, start: int = 0) -> Http1ResponseHead | None:
    """Parse the response head at `start`; None if it is incomplete. Raises HeadError."""
    plain = _PLAIN_RESPONSE.match(data, start)
    if plain is not None and method not in _BODILESS:
        return PlainResponseHead(plain)
    match = _RESPONSE.match(data, start)
    if match is None:
        refuse_or_wait(data, start)
        return None
    head = Http1ResponseHead(match)
    _read_response(head, _collect(_MATTERS.findall(data, match.end(2), head.end)), method)
    return head


def refuse_or_wait(data: bytes, start: int = 0, seen: int = 0) -> None:
    """Raise HeadError if more bytes cannot complete the head. The first `seen` bytes were checked before."""
    if data.find(b"\r\n\r\n", max(start, seen - 3)) >= 0:
        raise HeadError("malformed HTTP/1 head")
    if len(data) - start > MAX_HEAD:
        raise HeadError("the head is larger than 64 KiB", 431)
    if _BAD_BYTE.search(data, max(start, seen - 1)):
        raise HeadError("malformed HTTP/1 head: bare line feed or NUL")


def field_in(raw: bytes, name: bytes) -> bytes | None:
    """Return the first value of a field in a head, by its lower-case name."""
    match = re.search(rb"\r\n(?i:" + re.escape(name) + rb"):[ \t]*([^\r]*)", raw)
    return match[1].rstrip(b" \t") if match else None


def _read_proxied(data: bytes, plain: re.Match[bytes]) -> ProxiedRequestHead | None:
    """Return a head with fields of an ingress; None if one is repeated or has no value, or others follow."""
    rest = _PROXIED_REST.match(data, plain.end())
    # Before Python 3.11.5, a possessive group that fails may stop within a line.
    if rest is None or not (plain[0].endswith(b"\r\n") and rest[0].endswith(b"\r\n\r\n")):
        return None
    head = ProxiedRequestHead(plain, rest)
    names = []
    for field in _PROXIED.finditer(head.raw, plain.end() - plain.start() - 2):
        names.append(field[1].lower())
        if field[2] is None:
            return None
        if names[-1] == b"x-forwarded-for":
            head.chain = field.end(2)
    head.forwarded = frozenset(names)
    return head if len(head.forwarded) == len(names) else None


def _read_request(head: Http1RequestHead, found: Found) -> None:
    head.host = _single_host(found, head.minor)
    head.framing, head.length = _request_framing(found, head.minor)
    head.connection = _tokens(found.get(b"connection", ()))
    head.keep_alive = _keep_alive(head.connection, head.minor)
    if b"upgrade" in head.connection and b"upgrade" in found:
        head.upgrade = b", ".join(found[b"upgrade"])
    head.expects_continue = b"expect" in found and _expects_continue(found)
    head.edited = _edited(head.connection, found)
    head.forwarded = _FORWARDED.intersection(found)
    head.watches = b"x-elasti-wait" in found and head.method == b"GET"
    if head.target[0] != _SLASH:
        _check_target(head)


def _read_response(head: Http1ResponseHead, found: Found, method: bytes) -> None:
    is_mended = _mend_length(head, found)
    head.framing, head.length = _response_framing(found, head.status, method)
    head.connection = _tokens(found.get(b"connection", ()))
    keep = _keep_alive(head.connection, head.minor)
    head.keep_alive = keep and head.framing is not _CLOSE and not is_mended
    if head.status == 101 and b"upgrade" in found:
        head.upgrade = b", ".join(found[b"upgrade"])
    head.edited = is_mended or head.minor == 0 or _edited(head.connection, found)


def _mend_length(head: Http1ResponseHead, found: Found) -> bool:
    """Drop a repeated Content-Length, and one beside chunks. Returns whether it changed the head.

    The request was executed, so a response with only one reading is forwarded, repaired as in RFC 9112, 6.3. The
    pod's connection is not used again.
    """
    lengths = found.get(b"content-length", [])
    is_chunked = b"transfer-encoding" in found
    if not lengths or len(set(lengths)) > 1 or (len(lengths) == 1 and not is_chunked):
        return False
    head.raw = _LENGTH_LINE.sub(b"", head.raw)
    if is_chunked:
        del found[b"content-length"]
    else:
        found[b"content-length"] = lengths[:1]
        head.raw = head.raw[:-2] + b"Content-Length: %b\r\n\r\n" % lengths[0]
    return True


def _check_target(head: Http1RequestHead) -> None:
    """Refuse a target that is neither a path nor a URL with the Host field's host.

    RFC 9112, 3.2.2 prefers the target's host, but not every server does. Servers differ about targets without a
    host (`http:/x`, `x`).
    """
    if head.target == b"*" or head.method == b"CONNECT":
        return
    absolute = _AUTHORITY.match(head.target)
    if absolute is None or not absolute[1]:
        raise HeadError("the request target is neither a path nor a URL with a host")
    if head.host is not None and absolute[1].lower() != head.host.lower():
        raise HeadError("the request target and the Host field name different hosts")


def _edited(connection: frozenset[bytes], found: Found) -> bool:
    return bool(connection - _KEEP_ALIVE) or not _HOP_BY_HOP.isdisjoint(found)


def _collect(found: list[tuple[bytes, bytes]]) -> Found:
    """Gather the values of each field that matters."""
    fields: Found = {}
    for name, value in found:
        fields.setdefault(name.lower(), []).append(value.rstrip(b" \t"))
    return fields


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
            raise HeadError("Transfer-Encoding together with Content-Length or in HTTP/1.0")
        if _codings(found) != [b"chunked"]:
            raise HeadError("the only transfer coding supported is chunked", 501)
        return Framing.CHUNKED, 0
    if b"content-length" in found:
        length = _length(found)
        return (Framing.LENGTH, length) if length else (Framing.NONE, 0)
    return Framing.NONE, 0


def _response_framing(found: Found, status: int, method: bytes) -> tuple[Framing, int]:
    length = _length(found) if b"content-length" in found else None
    if status < 200 or status in (204, 304) or method == b"HEAD":
        return Framing.NONE, 0
    if method == b"CONNECT" and status < 300:
        return Framing.NONE, 0
    if b"transfer-encoding" in found:
        return (Framing.CHUNKED, 0) if _codings(found)[-1] == b"chunked" else (Framing.CLOSE, 0)
    if length is None:
        return Framing.CLOSE, 0
    return (Framing.LENGTH, length) if length else (Framing.NONE, 0)


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
