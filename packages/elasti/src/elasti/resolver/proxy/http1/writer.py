"""HTTP/1 heads that we write: those that pass through, edited as bytes, and responses of our own.

Hop-by-hop fields stop here (RFC 9110, 7.6.1); the client's address is added for the pod; the Host stays what
the client sent. Where proxies before us wrote X-Forwarded-For or Forwarded, the address goes to the end of
that line: a second line means the same, but many servers read only the first. A head without hop-by-hop fields passes untouched, and `Connection: keep-alive` alone is what we
would say ourselves. Refusals are JSON, with the time to try again.
"""

from __future__ import annotations

import functools
import http
import re
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from elasti.resolver.proxy.http1.heads import Http1RequestHead, Http1ResponseHead


_HOP_BY_HOP = frozenset((b"connection", b"keep-alive", b"proxy-connection", b"te", b"upgrade"))
_MAPPED = re.compile(r"\A::ffff:(?=\d+\.\d+\.\d+\.\d+\Z)", re.IGNORECASE)
_CONNECTION = re.compile(rb"\r\n(?i:connection):[^\r]*")
_TRAILERS_WANTED = re.compile(rb"(?im)^te:[^\r]*trailers")
# Of what a proxy before us said, these stay as they are; it knows what we do not.
_KEPT = frozenset((b"x-forwarded-proto", b"x-forwarded-host"))
# Of a thousand clients so much is remembered.
_LONGEST_LINES = 1024
# Fields that frame or route the message are never dropped, whatever Connection names.
_PROTECTED = frozenset(
    (b"host", b"content-length", b"transfer-encoding", b"close", b"trailer", b"")
)


class HeadForwarder:
    """Adds the client's address, for one client; remembers the lines of the last host, which rarely changes."""

    __slots__ = ("_address", "_host", "_lines", "_quoted")

    def __init__(self, peer: str) -> None:
        # A socket for both families shows clients of IPv4 in the IPv4-mapped form of IPv6, which servers do not expect.
        self._address = _MAPPED.sub("", peer).encode()
        self._quoted = b'"[%b]"' % self._address if b":" in self._address else self._address
        self._host: bytes | None = b"no host yet"
        self._lines = b""

    def request_head(self, head: Http1RequestHead) -> bytes:
        """Return the head to send to a pod."""
        lines = self._lines
        if head.host != self._host:
            lines = self._for_host(head.host)
            if len(lines) <= _LONGEST_LINES:
                self._host, self._lines = head.host, lines
        if head.forwarded:
            lines = self._merged(head, lines)
        if head.edited or head.minor == 0 or head.forwarded:
            first, _, fields = head.raw[:-2].partition(b"\r\n")
            kept = without_hop_by_hop(fields, head.connection | (head.forwarded - _KEPT))
            return b"".join((first, b"\r\n", kept, lines, _connection_lines(head), b"\r\n"))
        return head.raw[:-2] + lines + b"\r\n"

    def _for_host(self, host: bytes | None) -> bytes:
        lines = b"X-Forwarded-For: %b\r\nX-Forwarded-Proto: http\r\n" % self._address
        if not host:
            return lines + b"Forwarded: for=%b;proto=http\r\n" % self._quoted
        lines += b"X-Forwarded-Host: %b\r\n" % host
        return lines + b'Forwarded: for=%b;host="%b";proto=http\r\n' % (self._quoted, host)

    def _merged(self, head: Http1RequestHead, own: bytes) -> bytes:
        """Return the lines for a client that is a proxy: lists go on, what it said first counts."""
        lines = []
        for line in own.splitlines(keepends=True):
            name = line.partition(b":")[0].lower()
            if name not in head.forwarded:
                lines.append(line)
            elif name not in _KEPT:
                values = re.findall(rb"\r\n(?i:" + name + rb"):[ \t]*([^\r]*)", head.raw)
                said = b"".join(value.rstrip(b" \t") + b", " for value in values if value)
                label, _, ours = line.partition(b": ")
                lines.append(b"%b: %b%b" % (label, said, ours))
        return b"".join(lines)


@functools.lru_cache(maxsize=1024)
def forwarder_for(peer: str) -> HeadForwarder:
    """Return the forwarder of a client, which its connections share."""
    return HeadForwarder(peer)


def _connection_lines(head: Http1RequestHead) -> bytes:
    if head.upgrade is not None:
        return b"Connection: Upgrade\r\nUpgrade: %b\r\n" % head.upgrade
    if b"te" in head.connection and _TRAILERS_WANTED.search(head.raw):
        return b"Connection: TE\r\nTE: trailers\r\n"
    return b"Connection: keep-alive\r\n" if head.minor == 0 and head.keep_alive else b""


def response_head(
    head: Http1ResponseHead, *, close: bool, keep_alive_1_0: bool, extra: bytes
) -> bytes:
    """Return the head to send to the client.

    `close` announces the end of the connection, `extra` are whole lines to add.
    """
    tail = extra
    if head.upgrade is not None:
        tail += b"Connection: Upgrade\r\nUpgrade: %b\r\n" % head.upgrade
    elif close:
        tail += b"Connection: close\r\n"
    elif keep_alive_1_0:
        tail += b"Connection: keep-alive\r\n"
    if head.edited:
        first, _, fields = head.raw[:-2].partition(b"\r\n")
        kept = without_hop_by_hop(fields, head.connection)
        # Whatever the pod speaks, the client hears our version.
        return b"".join((b"HTTP/1.1", first[8:], b"\r\n", kept, tail, b"\r\n"))
    raw = head.raw
    if close and head.connection:
        # It says keep-alive, or it were edited.
        raw = _CONNECTION.sub(b"", raw)
    return raw[:-2] + tail + b"\r\n" if tail else raw


def without_hop_by_hop(fields: bytes, connection: frozenset[bytes]) -> bytes:
    """Drop the hop-by-hop fields and those that Connection names."""
    names = _HOP_BY_HOP | (connection - _PROTECTED)
    lines = fields.split(b"\r\n")
    return b"".join(
        line + b"\r\n" for line in lines if line and line.partition(b":")[0].lower() not in names
    )


RETRY_AFTER_SECONDS = 5


def refusal_body(status: int, message: str) -> bytes:
    """Return the JSON that says why."""
    return msgspec.json.encode({"error": message, "status": status})


def refusal_response(status: int, message: str, *, retry: bool, head_only: bool = False) -> bytes:
    """Return a whole response that says why, and when to come back; the connection ends with it."""
    body = refusal_body(status, message)
    lines = [
        f"HTTP/1.1 {status} {http.HTTPStatus(status).phrase}",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
    ]
    if retry:
        lines.append(f"Retry-After: {RETRY_AFTER_SECONDS}")
    lines.append("Connection: close")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + (b"" if head_only else body)


def content_type(body: bytes) -> bytes:
    """Guess what a configured body is."""
    return b"application/json" if body[:1] in (b"{", b"[") else b"text/plain"


def plain_response(
    status: int, body: bytes, *, close: bool, head_only: bool, fields: bytes = b""
) -> bytes:
    """Return a whole response with a body as given; `fields` say of what type it is, and more."""
    connection = b"Connection: close\r\n" if close else b""
    first = f"HTTP/1.1 {status} {http.HTTPStatus(status).phrase}\r\n".encode()
    if status in (http.HTTPStatus.NO_CONTENT, http.HTTPStatus.NOT_MODIFIED):
        return first + connection + b"\r\n"
    fields = fields or b"Content-Type: %b\r\n" % content_type(body)
    fields += b"Content-Length: %d\r\n" % len(body)
    return first + fields + connection + b"\r\n" + (b"" if head_only else body)
