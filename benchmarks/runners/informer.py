"""A kubeloop informer with one handler on the producer's pods: list or stream, then the watch."""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import time
from typing import Any

from benchmarks.models import SlimPod
from benchmarks.runners.cluster import kubeconfig
from benchmarks.runners.pauses import CollectorWatch, LoopTicker
from benchmarks.runners.usage import Stopwatch, peak
from kubeloop import Client
from kubeloop.informer import ReflectorOptions, SharedInformerFactory
from kubeloop.informer.handlers import Notification, Updated
from kubeloop.objects.lazy import LazyObject


class Handler:
    """Counts notifications, and decodes their objects where the variant hands out dictionaries."""

    def __init__(self, *, changes: int, as_dict: bool) -> None:
        self._left = changes
        self._as_dict = as_dict
        self.done = asyncio.get_running_loop().create_future()

    def __call__(self, note: Notification[Any]) -> None:
        """Take one notification."""
        if self._as_dict:
            obj = note.new if isinstance(note, Updated) else note.obj
            obj.to_dict()
        self._left -= 1
        if not self._left:
            self.done.set_result(None)


def kind_of(variant: str) -> type[Any]:
    """Return the representation of a variant."""
    return {"slim": SlimPod, "dict": dict}.get(variant, LazyObject)


async def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Run to the last change, and return what it took."""
    handler = Handler(changes=arguments.changes, as_dict=arguments.variant == "lazy-dict")
    options = ReflectorOptions(
        watch_list=arguments.mode == "stream", page_size=500 if arguments.mode == "pages" else 0
    )
    with kubeconfig(arguments.url, arguments.ca) as path:
        async with Client.from_kubeconfig(path) as client:
            factory = SharedInformerFactory(client, options=options)
            informer = factory.informer("v1/pods", kind_of(arguments.variant))
            informer.add_handler(on_event=handler)
            return await _run(factory, informer, handler)


async def _run(factory: Any, informer: Any, handler: Handler) -> dict[str, Any]:
    ticker, clock = LoopTicker(), Stopwatch()
    async with factory.running():
        await factory.wait_for_sync(timeout=300)
        listed = {f"list_{name}": value for name, value in clock.read().items()}
        listed |= {"list_block": ticker.stop(), "list_peak": float(peak())}
        ticker, collections = LoopTicker(), CollectorWatch()
        await handler.done
        used = clock.read()
        collections.stop()
        began = time.perf_counter()
        gc.collect()
        full = time.perf_counter() - began
        return {
            **used,
            **listed,
            "live": len(informer.store),
            "peak": peak(),
            "block": ticker.stop(),
            "collections": collections.collections,
            "pause": max(collections.longest, full),
        }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", required=True)
    parser.add_argument("--ca", default="")
    parser.add_argument("--changes", type=int, required=True)
    parser.add_argument("--variant", required=True)
    parser.add_argument("--mode", default="stream")
    print(json.dumps(asyncio.run(measure(parser.parse_args()))))


if __name__ == "__main__":
    main()
