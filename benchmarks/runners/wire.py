"""Reads one watch with the wire alone: socket, framing, lines, decoding; nothing is kept."""

from __future__ import annotations

import argparse
import asyncio
import json
import ssl
from typing import Any

from benchmarks.models import SlimPod
from benchmarks.runners.usage import Stopwatch, peak
from kubeloop.client.config.endpoint import Endpoint
from kubeloop.client.wire.streams import StreamRequest, open_watch
from kubeloop.objects.codec import Codec, codec_for
from kubeloop.objects.lazy import LazyObject


def codec_named(name: str) -> Codec[Any]:
    """Return the codec of a variant."""
    match name:
        case "slim":
            return codec_for(SlimPod)
        case "dict":
            return codec_for(dict, managed_fields=False)
        case _:
            return codec_for(LazyObject)


async def read(*, url: str, ca: str, events: int, variant: str) -> dict[str, float]:
    """Read so many events and return what it took."""
    watch = await open_watch(
        StreamRequest(
            endpoint=Endpoint.parse(url),
            ssl_context=ssl.create_default_context(cadata=ca) if ca else None,
            headers=(),
            target="/api/v1/pods?watch=true",
            connect_timeout=10,
        ),
        codec_named(variant),
        idle_timeout=60,
    )
    as_dict = variant == "lazy-dict"
    clock, left = Stopwatch(), events
    while left:
        batch = await watch.read()
        if as_dict:
            for event in batch:
                if event.type != "BOOKMARK":
                    event.object.to_dict()
        left -= len(batch)
    used = clock.read()
    await watch.close()
    return used | {"peak": peak(), "rate": events / used["wall"], "us": used["cpu"] / events * 1e6}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", required=True)
    parser.add_argument("--ca", default="")
    parser.add_argument("--events", type=int, required=True)
    parser.add_argument("--variant", required=True)
    print(json.dumps(asyncio.run(read(**vars(parser.parse_args())))))


if __name__ == "__main__":
    main()
