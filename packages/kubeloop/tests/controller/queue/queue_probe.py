"""What the queue tests share: a worker's view of a queue, and metrics that remember."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from kubeloop.controller.queue.workqueue import WorkQueue

K = TypeVar("K")


def now() -> float:
    return asyncio.get_running_loop().time()


async def take(queue: WorkQueue[K]) -> K:
    """Get an item and hand it back at once."""
    item = await queue.get()
    queue.done(item)
    return item


async def take_all(queue: WorkQueue[K]) -> list[K]:
    """Get and hand back whatever is ready now."""
    return [await take(queue) for _ in range(len(queue))]


async def settle() -> None:
    """Let everything that is ready run, without moving time."""
    for _ in range(10):
        await asyncio.sleep(0)


class RecordedMetrics:
    """Metrics that remember every call."""

    def __init__(self) -> None:
        self.depths: list[int] = []
        self.adds = 0
        self.retries = 0
        self.waits: list[float] = []
        self.works: list[float] = []
        self.runnings: list[tuple[float, float, float]] = []

    def depth(self, items: int) -> None:
        self.depths.append(items)

    def added(self) -> None:
        self.adds += 1

    def waited(self, seconds: float) -> None:
        self.waits.append(seconds)

    def worked(self, seconds: float) -> None:
        self.works.append(seconds)

    def running(self, unfinished_seconds: float, longest_seconds: float) -> None:
        self.runnings.append((now(), unfinished_seconds, longest_seconds))

    def retried(self) -> None:
        self.retries += 1
