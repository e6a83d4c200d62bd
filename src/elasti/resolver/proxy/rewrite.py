"""Heads on their way through: edited as bytes, and only where an edit is due.

Hop-by-hop fields stop here (RFC 9110, 7.6.1); who asked is added for the pod; the Host stays what the
client sent. Fields that are lists get another line instead of a changed one, which means the same and
costs nothing. A response without hop-by-hop fields passes untouched.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from elasti.resolver.proxy.heads import RequestHead, ResponseHead

_HOP_BY_HOP = (b"connection", b"keep-alive", b"proxy-connection", b"te", b"upgrade")
_ANY_HOP = re.compile(rb"(?im)^(?:connection|keep-alive|proxy-connection|te|upgrade):")
# Fields that frame or route the message are never dropped, whatever Connection names.
_PROTECTED = frozenset(
    (b"host", b"content-length", b"transfer-encoding", b"close", b"trailer", b"")
)


def forwarded_suffix(peer: str, host: bytes | None, found: RequestHead) -> bytes:
    """Return the lines that tell the pod who asked, in the forms that are in use."""
    address = peer.encode()
    quoted = b'"[%b]"' % address if b":" in address else address
    lines = [b"X-Forwarded-For: %b\r\n" % address]
    if b"x-forwarded-proto" not in found.forwarded:
        lines.append(b"X-Forwarded-Proto: http\r\n")
    if host is not None and b"x-forwarded-host" not in found.forwarded:
        lines.append(b"X-Forwarded-Host: %b\r\n" % host)
    forwarded_host = b';host="%b"' % host if host else b""
    lines.append(b"Forwarded: for=%b%b;proto=http\r\n" % (quoted, forwarded_host))
    return b"".join(lines)


def request_head(head: RequestHead, peer: str) -> bytes:
    """Return the head to send to a pod."""
    line = b"%b %b HTTP/1.%d\r\n" % (head.method, head.target, head.minor)
    fields = head.fields
    if _ANY_HOP.search(fields):
        fields = without_hop_by_hop(fields, head.connection)
    ending = b""
    if head.upgrade is not None:
        ending = b"Connection: Upgrade\r\nUpgrade: %b\r\n" % head.upgrade
    elif b"te" in head.connection and re.search(rb"(?im)^te:[^\r]*trailers", head.fields):
        ending = b"Connection: TE\r\nTE: trailers\r\n"
    elif head.minor == 0 and head.keep_alive:
        ending = b"Connection: keep-alive\r\n"
    return b"".join((line, fields, forwarded_suffix(peer, head.host, head), ending, b"\r\n"))


def response_head(
    raw: bytes, head: ResponseHead, *, close: bool, keep_alive_1_0: bool, extra: bytes
) -> bytes:
    """Return the head to send to the client; `raw` ends with the head's empty line.

    `close` announces the end of the connection, `extra` are whole lines to add.
    """
    fields = head.fields
    tail = extra
    if close:
        tail += b"Connection: close\r\n"
    elif keep_alive_1_0:
        tail += b"Connection: keep-alive\r\n"
    if head.status == 101 and head.upgrade is not None:
        tail += b"Connection: Upgrade\r\nUpgrade: %b\r\n" % head.upgrade
    if _ANY_HOP.search(fields):
        status_line = raw[: raw.index(b"\r\n") + 2]
        return b"".join((status_line, without_hop_by_hop(fields, head.connection), tail, b"\r\n"))
    return raw[:-2] + tail + b"\r\n" if tail else raw


def without_hop_by_hop(fields: bytes, connection: tuple[bytes, ...]) -> bytes:
    """Drop the hop-by-hop fields and those that Connection names."""
    names = {*_HOP_BY_HOP, *(set(connection) - _PROTECTED)}
    lines = fields.split(b"\r\n")
    return b"".join(
        line + b"\r\n" for line in lines if line and line.partition(b":")[0].lower() not in names
    )
