"""A log as an HTTP response."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from aiohttp import web

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


async def stream(request: web.BaseRequest, pieces: AsyncIterator[bytes]) -> web.StreamResponse:
    """Send a log as it comes; ends with it, or when the reader goes."""
    response = web.StreamResponse(headers={"Content-Type": "text/plain"})
    response.enable_chunked_encoding()
    await response.prepare(request)
    async with contextlib.aclosing(pieces) as opened:  # type: ignore[type-var]  # generators, all of them
        async for piece in opened:
            if piece:
                await response.write(piece)
    await response.write_eof()
    return response
