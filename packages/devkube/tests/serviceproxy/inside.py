"""A service proxy as a process of its own, for the network namespace of a real control plane.

python -m tests.serviceproxy.inside KUBECONFIG
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
import sys
from pathlib import Path

from devkube.serviceproxy.proxy import ServiceProxy
from kubeloop.client import Client

DESCRIPTORS = 100_000


def raise_descriptor_limit() -> None:
    """Take two descriptors for each of many connections; the kernel's own NAT needs none."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, max(hard, DESCRIPTORS)))


async def main(kubeconfig: str) -> None:
    raise_descriptor_limit()
    async with Client.from_kubeconfig([Path(kubeconfig)]) as client:
        await ServiceProxy(client).run()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
