"""Whether a connection's first bytes are a message of a protocol whose clients speak first. Pure.

A port scanner or a health check sends nothing, or bytes that no database understands. A client of PostgreSQL, Redis
or TLS begins with a message that is known by its first bytes.
"""

from __future__ import annotations

import re

# The first bytes of a PROXY header, version 2.
PROXY_SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"
_TLS_HANDSHAKE = b"\x16\x03"
_BEGINNINGS = (b"PROXY ", _TLS_HANDSHAKE)
# PostgreSQL: the length of the message, then a version of the protocol or a request's code.
_POSTGRES_HEADER = 8
_POSTGRES_LENGTHS = range(8, 10_001)
_POSTGRES_VERSION = 3
_POSTGRES_REQUESTS = frozenset((80877102, 80877103, 80877104))
# Redis: an array of bulk strings, or the one command that people type.
_REDIS = re.compile(rb"\*[1-9][0-9]{0,6}\r\n\$[0-9]{1,9}\r\n|(?i:ping)\r?\n")
_REDIS_BEGINNING = re.compile(
    rb"\*(?:[1-9][0-9]{0,6}(?:\r(?:\n(?:\$[0-9]{0,9}\r?)?)?)?)?\Z|(?i:p(?:i(?:n(?:g\r?)?)?)?)\Z"
)


def is_first_message(data: bytes) -> bool | None:
    """Return whether bytes begin with a known message; None if more bytes are needed to tell."""
    data = _behind_proxy_header(data)
    if not data:
        return None
    if data.startswith(_TLS_HANDSHAKE) or _REDIS.match(data):
        return True
    if any(known.startswith(data) for known in _BEGINNINGS) or _REDIS_BEGINNING.match(data):
        return None
    if len(data) < _POSTGRES_HEADER:
        # The length's first two bytes are zero.
        return None if data[:2] == b"\0\0"[: len(data)] else False
    code = int.from_bytes(data[4:8])
    known = code >> 16 == _POSTGRES_VERSION or code in _POSTGRES_REQUESTS
    return known and int.from_bytes(data[:4]) in _POSTGRES_LENGTHS


def _behind_proxy_header(data: bytes) -> bytes:
    if data.startswith(b"PROXY "):
        return data.partition(b"\r\n")[2]
    if data.startswith(PROXY_SIGNATURE):
        return data[16 + int.from_bytes(data[14:16]) :]
    return data
