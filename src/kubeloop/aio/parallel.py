"""Work on a known number of pieces with a bounded number of workers."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator


async def parallelize_until(
    workers: int,
    pieces: int,
    func: Callable[[int], Awaitable[object]],
    stop: asyncio.Event | None = None,
    *,
    chunk: int = 1,
) -> None:
    """Await `func(0)` ... `func(pieces - 1)`, each exactly once, at most `workers` at a time.

    Workers take `chunk` neighbouring pieces at once. Once `stop` is set no further piece is begun;
    pieces under way end. The first exception cancels the rest and is raised (in a group, since
    several may fail together); cancellation ends all workers before it goes on.
    """
    if workers < 1 or chunk < 1:
        raise ValueError(f"workers={workers} and chunk={chunk} must be at least 1")
    chunks = iter(range(0, pieces, chunk))
    async with asyncio.TaskGroup() as group:
        for _ in range(min(workers, -(-pieces // chunk))):
            group.create_task(_work(chunks, chunk, pieces, func, stop))


async def _work(
    chunks: Iterator[int],
    chunk: int,
    pieces: int,
    func: Callable[[int], Awaitable[object]],
    stop: asyncio.Event | None,
) -> None:
    for first in chunks:
        for piece in range(first, min(first + chunk, pieces)):
            if stop is not None and stop.is_set():
                return
            await func(piece)
