"""What it costs to have kubeloop in a program: time and memory of imports and of the first use."""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import ssl
import time
from pathlib import Path

_PAGE = 4096


def resident() -> int:
    """Return the bytes of memory that this process holds now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE


async def use() -> None:
    """Use kubeloop as far as possible without a server: a client, an informer, a handler."""
    kubeloop = importlib.import_module("kubeloop")
    credentials = importlib.import_module("kubeloop.client.auth.credentials")
    endpoints = importlib.import_module("kubeloop.client.config.endpoint")
    informers = importlib.import_module("kubeloop.informer")
    config = kubeloop.ClientConfig(
        endpoint=endpoints.Endpoint.parse("http://127.0.0.1:1"),
        credentials=credentials.Anonymous(),
        source="benchmark",
    )
    async with kubeloop.Client(config) as client:
        factory = informers.SharedInformerFactory(client)
        factory.informer("v1/pods").add_handler(on_add=print)


def main() -> None:
    """Measure and print. asyncio and ssl are there in any case, and count for nothing."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--variant", required=True)
    variant = parser.parse_args().variant
    ssl.create_default_context()
    memory, began = resident(), time.process_time()
    importlib.import_module("msgspec")
    if variant == "import":
        importlib.import_module("kubeloop")
    asyncio.run(use() if variant == "use" else asyncio.sleep(0))
    seconds = time.process_time() - began
    print(json.dumps({"ms": seconds * 1000, "mib": (resident() - memory) / 2**20}))


if __name__ == "__main__":
    main()
