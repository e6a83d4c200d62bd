"""Less memory for connections that mostly wait.

asyncio gives every TLS connection a read buffer of 256 KiB, whatever it is for: five hundred idle
watches would hold 128 MiB of zeros. A request's connection is given a small buffer instead. asyncio
offers no setting for it, so this reaches into its TLS protocol, and leaves alone what it does not
recognise (another event loop, another version): then only the memory is lost.
"""

from __future__ import annotations

import asyncio
from asyncio import sslproto

_SIZE = 16 * 1024
_PARTS = ("_ssl_buffer", "_ssl_buffer_view")


def slim(transport: asyncio.BaseTransport | None) -> None:
    """Shrink the read buffer of a TLS connection; between reads only, which a handler always is."""
    protocol = getattr(transport, "_ssl_protocol", None)
    if not isinstance(protocol, sslproto.SSLProtocol) or protocol.max_size <= _SIZE:
        return
    parts = vars(protocol)
    if all(name in parts for name in _PARTS):
        buffer = bytearray(_SIZE)
        parts.update(max_size=_SIZE, _ssl_buffer=buffer, _ssl_buffer_view=memoryview(buffer))
