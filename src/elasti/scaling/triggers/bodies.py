"""Bodies of answers, whole or not at all.

A stream hands out what has arrived so far, which is the whole body only for small ones. A beginning that
is taken for the whole gives a number that is too small, and a target that sleeps while it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import aiohttp

_MIB = 1 << 20


class TooLong(Exception):
    """The body has no end, or one that is too far away."""


async def whole_body(response: aiohttp.ClientResponse, *, limit: int) -> bytes:
    """Read a body to its end. Raises TooLong, and what aiohttp raises."""
    body = bytearray()
    while piece := await response.content.readany():
        body += piece
        if len(body) > limit:
            raise TooLong(f"the answer is longer than {limit / _MIB:g} MiB")
    return bytes(body)
