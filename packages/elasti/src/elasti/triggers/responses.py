"""Responses of Prometheus and of pods, read to their end within a bound.

A stream hands out what has arrived so far, which is the whole body only for small ones. A
beginning that is taken for the whole gives a number that is too small, and a target that sleeps
while it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import aiohttp


_MIB = 1 << 20
_CHUNK = 32 * 1024


class ResponseTooLong(Exception):
    """The body has no end, or one that is too far away."""


async def whole_body(response: aiohttp.ClientResponse, *, limit: int) -> bytes:
    """Read a body to its end. Raises ResponseTooLong, and what aiohttp raises."""
    return b"".join([piece async for piece in body_chunks(response, limit=limit)])


async def body_chunks(response: aiohttp.ClientResponse, *, limit: int) -> AsyncIterator[bytes]:
    """Iterate over a body to its end, in small pieces. Raises ResponseTooLong, and what aiohttp raises."""
    length = 0
    while data := await response.content.readany():
        length += len(data)
        if length > limit:
            raise ResponseTooLong(f"the answer is longer than {limit / _MIB:g} MiB")
        for first in range(0, len(data), _CHUNK):
            yield data[first : first + _CHUNK]
