"""Bodies of answers, whole or not at all.

A stream hands out what has arrived so far, which is the whole body only for small ones. A beginning that
is taken for the whole gives a number that is too small, and a target that sleeps while it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import aiohttp

_MIB = 1 << 20
_PIECE = 32 * 1024


class TooLong(Exception):
    """The body has no end, or one that is too far away."""


async def whole_body(response: aiohttp.ClientResponse, *, limit: int) -> bytes:
    """Read a body to its end. Raises TooLong, and what aiohttp raises."""
    return b"".join([piece async for piece in pieces(response, limit=limit)])


async def pieces(response: aiohttp.ClientResponse, *, limit: int) -> AsyncIterator[bytes]:
    """Iterate over a body to its end, in small pieces. Raises TooLong, and what aiohttp raises."""
    length = 0
    while data := await response.content.readany():
        length += len(data)
        if length > limit:
            raise TooLong(f"the answer is longer than {limit / _MIB:g} MiB")
        for first in range(0, len(data), _PIECE):
            yield data[first : first + _PIECE]
