"""The official client's SharedInformer with one handler on the producer's pods."""

from __future__ import annotations

import argparse
import gc
import json
import threading
import time

from kubernetes import client, config
from kubernetes.informer import SharedInformer

from benchmarks.runners.cluster import kubeconfig
from benchmarks.runners.pauses import CollectorWatch, ThreadTicker
from benchmarks.runners.usage import Stopwatch, peak


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", required=True)
    parser.add_argument("--ca", default="")
    parser.add_argument("--changes", type=int, required=True)
    parser.add_argument("--listed", type=int, default=0)
    arguments = parser.parse_args()
    done, synced = threading.Event(), threading.Event()
    seen = 0

    def handle(_obj: object) -> None:
        nonlocal seen
        seen += 1
        if seen == arguments.listed:
            synced.set()
        if seen == arguments.changes:
            done.set()

    with kubeconfig(arguments.url, arguments.ca) as path:
        config.load_kube_config(path)
        informer = SharedInformer(client.CoreV1Api().list_pod_for_all_namespaces)
        for kind in ("ADDED", "MODIFIED", "DELETED"):
            informer.add_event_handler(kind, handle)
        ticker, clock = ThreadTicker(), Stopwatch()
        informer.start()
        if arguments.listed:
            synced.wait()
        listed = {f"list_{name}": value for name, value in clock.read().items()}
        listed |= {"list_block": ticker.stop(), "list_peak": float(peak())}
        collections = CollectorWatch()
        done.wait()
        used = clock.read()
        collections.stop()
        began = time.perf_counter()
        gc.collect()
        full = time.perf_counter() - began
    print(
        json.dumps(
            {
                **used,
                **listed,
                "live": len(informer.cache.list()),
                "peak": peak(),
                "pause": max(collections.longest, full),
            }
        ),
        flush=True,
    )


if __name__ == "__main__":
    main()
