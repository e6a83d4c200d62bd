"""A kubelet as a program, for a real API server.

    python -m tests.kubelet.inside [--pods N] [--program IMAGE=COMMAND]... [--env NAME=VALUE]...
        KUBECONFIG NODE ADDRESS NETWORK DIRECTORY

Runs until it is told to stop.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
import sys
from pathlib import Path

from devkube.addresses import AddressPool
from devkube.cluster import ImagePrograms, read_program
from devkube.kubelet.kubelet import PATH, Kubelet, KubeletSettings
from kubeloop.client import Client, ClientConfig


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--pods", type=int, default=KubeletSettings().max_pods)
    parser.add_argument("--program", type=read_program, action="append", default=[])
    parser.add_argument("--env", action="append", default=[])
    for name in ("kubeconfig", "node", "address", "network", "directory"):
        parser.add_argument(name)
    return parser.parse_args()


def settings_for(given: argparse.Namespace) -> KubeletSettings:
    return KubeletSettings(
        node_address=given.address,
        environment={
            "PATH": f"{Path(sys.executable).parent}:{PATH}",
            **dict(one.split("=", 1) for one in given.env),
        },
        entrypoints=ImagePrograms(dict(given.program)),
        max_pods=given.pods,
    )


async def main() -> None:
    given = read_arguments()
    async with Client(ClientConfig.from_kubeconfig(given.kubeconfig)) as client:
        kubelet = Kubelet(
            client,
            node_name=given.node,
            ip_pool=AddressPool(given.network, reserved=[given.address]),
            root_dir=Path(given.directory),
            settings=settings_for(given),
        )
        task = asyncio.create_task(kubelet.run())
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        with contextlib.suppress(asyncio.CancelledError):
            await task


if __name__ == "__main__":
    asyncio.run(main())
