"""Rewrites HTTP/1 heads on their way, as bytes.

Hop-by-hop fields are dropped (RFC 9110, 7.6.1), the client's address is added, and the Host stays as the client
sent it. If an earlier proxy wrote X-Forwarded-For or Forwarded, the address is appended to that line: a second
line means the same, but many servers read only the first. A head without hop-by-hop fields passes unchanged, and
so does `Connection: keep-alive`.
"""

from __future__ import annotations

import functools
import re

from elasti.resolver.proxy.http1.heads import (
    Http1RequestHead,
    Http1ResponseHead,
    ProxiedRequestHead,
)

_HOP_BY_HOP = frozenset((b"connection", b"keep-alive", b"proxy-connection", b"te", b"upgrade"))
_MAPPED = re.compile(r"\A::ffff:(?=\d+\.\d+\.\d+\.\d+\Z)", re.IGNORECASE)
_CONNECTION = re.compile(rb"\r\n(?i:connection):[^\r]*")
_TRAILERS_WANTED = re.compile(rb"(?im)^te:[^\r]*trailers")
# An earlier proxy's values of these fields stay: it knows the original ones.
_KEPT = frozenset((b"x-forwarded-proto", b"x-forwarded-host"))
# The most that is remembered for each of a thousand clients.
_LONGEST_LINES = 1024
# Framing and routing fields are never dropped, even if Connection names them.
_PROTECTED = frozenset(
    (b"host", b"content-length", b"transfer-encoding", b"close", b"trailer", b"")
)


class HeadForwarder:
    """Adds one client's address; caches the lines for the last host, which rarely changes."""

    __slots__ = ("_address", "_host", "_lines", "_proxied", "_quoted")

    def __init__(self, peer: str) -> None:
        # A dual-stack socket shows IPv4 clients as IPv4-mapped IPv6 addresses, which servers do not expect.
        self._address = _MAPPED.sub("", peer).encode()
        self._quoted = b'"[%b]"' % self._address if b":" in self._address else self._address
        self._host: bytes | None = b"no host yet"
        self._lines = b""
        self._proxied = (b"", frozenset[bytes](), b"")

    def request_head(self, head: Http1RequestHead) -> bytes:
        """Return the head for the pod."""
        lines = self._lines
        if head.host != self._host:
            lines = self._for_host(head.host)
            if len(lines) <= _LONGEST_LINES:
                self._host, self._lines = head.host, lines
        if type(head) is ProxiedRequestHead:
            return self._proxied_head(head, lines)
        if head.forwarded:
            lines = self._merged(head, lines)
        if head.edited or head.minor == 0 or head.forwarded:
            first, _, fields = head.raw[:-2].partition(b"\r\n")
            kept = without_hop_by_hop(fields, head.connection | (head.forwarded - _KEPT))
            return b"".join((first, b"\r\n", kept, lines, _connection_lines(head), b"\r\n"))
        return head.raw[:-2] + lines + b"\r\n"

    def _proxied_head(self, head: ProxiedRequestHead, own: bytes) -> bytes:
        """Return the head of an ingress: its lines stay in place, and ours follow."""
        for_lines, names, lines = self._proxied
        if for_lines is not own or names != head.forwarded:
            lines = b"".join(
                line
                for line in own.splitlines(keepends=True)
                if line.partition(b":")[0].lower() not in head.forwarded
            )
            if len(lines) <= _LONGEST_LINES:
                self._proxied = (own, head.forwarded, lines)
        raw, chain = head.raw, head.chain
        if not chain:
            return b"%b%b\r\n" % (raw[:-2], lines)
        return b"%b, %b%b%b\r\n" % (raw[:chain], self._address, raw[chain:-2], lines)

    def _for_host(self, host: bytes | None) -> bytes:
        lines = b"X-Forwarded-For: %b\r\nX-Forwarded-Proto: http\r\n" % self._address
        if not host:
            return lines + b"Forwarded: for=%b;proto=http\r\n" % self._quoted
        lines += b"X-Forwarded-Host: %b\r\n" % host
        return lines + b'Forwarded: for=%b;host="%b";proto=http\r\n' % (self._quoted, host)

    def _merged(self, head: Http1RequestHead, own: bytes) -> bytes:
        """Return the lines for a client that is a proxy: extend its lists, keep its other values."""
        lines = []
        for line in own.splitlines(keepends=True):
            name = line.partition(b":")[0].lower()
            if name not in head.forwarded:
                lines.append(line)
            elif name not in _KEPT:
                values = re.findall(rb"\r\n(?i:" + name + rb"):[ \t]*([^\r]*)", head.raw)
                earlier = b"".join(value.rstrip(b" \t") + b", " for value in values if value)
                label, _, ours = line.partition(b": ")
                lines.append(b"%b: %b%b" % (label, earlier, ours))
        return b"".join(lines)


@functools.lru_cache(maxsize=1024)
def forwarder_for(peer: str) -> HeadForwarder:
    """Return the forwarder that a client's connections share."""
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
    """Return the head for the client.

    `close` announces the end of the connection; `extra` are whole lines to add.
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
        # The version is ours, not the pod's.
        return b"".join((b"HTTP/1.1", first[8:], b"\r\n", kept, tail, b"\r\n"))
    raw = head.raw
    if close and head.connection:
        # It is keep-alive; otherwise the head would be edited.
        raw = _CONNECTION.sub(b"", raw)
    return raw[:-2] + tail + b"\r\n" if tail else raw


def without_hop_by_hop(fields: bytes, connection: frozenset[bytes]) -> bytes:
    """Drop the hop-by-hop fields and those that Connection names."""
    names = _HOP_BY_HOP | (connection - _PROTECTED)
    lines = fields.split(b"\r\n")
    return b"".join(
        line + b"\r\n" for line in lines if line and line.partition(b":")[0].lower() not in names
    )
