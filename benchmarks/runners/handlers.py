"""One informer, a fast handler, and beside it one that is slow, raises or blocks."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import time
from typing import TYPE_CHECKING, Any, TypeAlias

from benchmarks.models import SlimPod
from benchmarks.runners.pauses import LoopTicker
from benchmarks.runners.usage import Stopwatch, resident
from kubeloop.informer import SharedInformer
from kubeloop.objects.list_watch import Page, WatchEvent
from kubeloop.objects.meta import STRUCT_ACCESS, SlimMeta

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kubeloop.informer import Notification
    from kubeloop.objects.list_watch import ListOptions, WatchOptions

Batch: TypeAlias = list[WatchEvent[SlimPod]]

_KEYS = 1000
_BATCH = 25


def events(count: int) -> Iterator[WatchEvent[SlimPod]]:
    """Yield changes of a thousand pods."""
    for version in range(1, count + 1):
        name = f"pod-{version % _KEYS}"
        metadata = SlimMeta(name=name, namespace="team", uid=name, resource_version=str(version))
        yield WatchEvent("ADDED" if version <= _KEYS else "MODIFIED", SlimPod(metadata))


class Source:
    """A list of nothing and a watch of many changes, in batches as a socket gives them."""

    access = STRUCT_ACCESS
    supports_watch_list = False

    def __init__(self, count: int) -> None:
        self._events = events(count)

    async def list(self, _options: ListOptions) -> Page[SlimPod]:
        """Return nothing."""
        return Page([], "1")

    async def watch(self, _options: WatchOptions) -> Source:
        """Return itself as the stream."""
        return self

    async def read(self) -> Batch:
        """Return a batch; wait for ever after the last one."""
        await asyncio.sleep(0)
        batch = [event for _, event in zip(range(_BATCH), self._events, strict=False)]
        if not batch:
            await asyncio.get_running_loop().create_future()
        return batch

    async def close(self) -> None:
        """Nothing is open."""


def other_handler(variant: str) -> dict[str, Any]:
    """Return how to register the second handler."""

    async def slow(_note: Notification[SlimPod]) -> None:
        await asyncio.sleep(0.001)

    def raising(_note: Notification[SlimPod]) -> None:
        raise RuntimeError("as it was told to")

    def blocking(_note: Notification[SlimPod]) -> None:
        time.sleep(0.001)

    match variant:
        case "slow":
            return {"on_event": slow}
        case "raising":
            return {"on_event": raising}
        case "blocking":
            return {"on_event": blocking, "blocking": True}
        case _:
            return {}


async def measure(variant: str, count: int) -> dict[str, float]:
    """Run until the fast handler has everything."""
    done = asyncio.get_running_loop().create_future()
    seen = 0

    def fast(_note: Notification[SlimPod]) -> None:
        nonlocal seen
        seen += 1
        if seen == count:
            done.set_result(None)

    informer = SharedInformer(Source(count), name="pods", stop_grace=0.1)
    informer.add_handler(on_event=fast)
    registration = other_handler(variant)
    handle = informer.add_handler(**registration) if registration else None
    memory, clock, ticker = resident(), Stopwatch(), LoopTicker()
    async with informer.running():
        await done
        used = clock.read()
        block, grown = ticker.stop(), resident() - memory
        pending = handle.pending if handle is not None else 0
        clock = Stopwatch()
        if handle is not None:
            await informer.remove_handler(handle)
        removed = clock.read()["wall"]
    return {**used, "block": block, "pending": pending, "grown": grown, "removed": removed}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--variant", required=True)
    parser.add_argument("--events", type=int, required=True)
    arguments = parser.parse_args()
    logging.disable(logging.CRITICAL)
    print(json.dumps(asyncio.run(measure(arguments.variant, arguments.events))))


if __name__ == "__main__":
    main()
