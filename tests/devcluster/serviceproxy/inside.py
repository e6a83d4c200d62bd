"""A service proxy as a process of its own, for the network namespace of a real control plane.

python -m tests.devcluster.serviceproxy.inside KUBECONFIG NODE
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from elasti.devcluster.serviceproxy.proxy import ServiceProxy
from kubeloop.client import Client


async def main(kubeconfig: str, node: str) -> None:
    async with Client.from_kubeconfig([Path(kubeconfig)]) as client:
        await ServiceProxy(client, node=node).run()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
