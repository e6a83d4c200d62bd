"""A kubelet as a program, for a real API server.

    python -m tests.devcluster.kubelet.inside KUBECONFIG NODE ADDRESS NETWORK DIRECTORY CLIENT_CA

Runs until it is told to stop.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from pathlib import Path

from elasti.devcluster.kubelet.addresses import AddressPool
from elasti.devcluster.kubelet.kubelet import Kubelet
from elasti.devcluster.kubelet.logs.server import ServerSettings
from elasti.devcluster.kubelet.settings import PATH, KubeletSettings
from kubeloop.client import Client, ClientConfig


def settings_for(address: str, client_ca: str) -> KubeletSettings:
    return KubeletSettings(
        node_address=address,
        environment={"PATH": f"{Path(sys.executable).parent}:{PATH}"},
        server=ServerSettings(client_ca=Path(client_ca).read_bytes()),
    )


async def main() -> None:
    kubeconfig, node, address, network, directory, client_ca = sys.argv[1:]
    async with Client(ClientConfig.from_kubeconfig(kubeconfig)) as client:
        kubelet = Kubelet(
            client,
            node_name=node,
            ip_pool=AddressPool(network, reserved=[address]),
            root_dir=Path(directory),
            settings=settings_for(address, client_ca),
        )
        task = asyncio.create_task(kubelet.run())
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        with contextlib.suppress(asyncio.CancelledError):
            await task


if __name__ == "__main__":
    asyncio.run(main())
