"""What a store of pods holds for each: the process's memory with them, less that without."""

from __future__ import annotations

import argparse
import gc
import json
from typing import TYPE_CHECKING, Any

from benchmarks.models import FullPod, SlimPod
from benchmarks.runners.usage import resident
from benchmarks.streams import watch_line
from kubeloop.objects.codec import codec_for
from kubeloop.objects.lazy import LazyObject

if TYPE_CHECKING:
    from kubeloop.objects.codec import Codec

_KINDS: dict[str, type[Any]] = {"slim": SlimPod, "full": FullPod, "lazy": LazyObject}


def codec_named(name: str) -> Codec[Any]:
    """Return the codec of a variant."""
    return codec_for(_KINDS[name]) if name in _KINDS else codec_for(dict, managed_fields=False)


def main() -> None:
    """Fill a store, measure, print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--variant", required=True)
    arguments = parser.parse_args()
    codec = codec_named(arguments.variant)
    # Everything that is made on first use is made before the measurement.
    codec.decode_event(watch_line(0))
    store: dict[str, object] = {}
    gc.collect()
    before = resident()
    for index in range(arguments.count):
        obj = codec.decode_event(watch_line(index)).object
        store[codec.access.key(obj)] = obj
    gc.collect()
    print(json.dumps({"per_pod": (resident() - before) / len(store)}))


if __name__ == "__main__":
    main()
