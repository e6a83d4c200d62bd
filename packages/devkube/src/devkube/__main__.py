"""`devkube`: run a cluster until it is interrupted."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
import sys
from pathlib import Path

from devkube import kubeconfig
from devkube.cluster import DevCluster, read_program


async def _run(given: argparse.Namespace) -> None:
    task = asyncio.current_task()
    assert task is not None
    for signum in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(signum, task.cancel)
    programs = dict(map(read_program, given.run))
    async with DevCluster(
        port=given.port, nodes=given.nodes, data_dir=given.data_dir, entrypoints=programs
    ) as cluster:
        kubeconfig.write(given.kubeconfig, cluster.access())
        await cluster.wait_ready()
        print(f"{cluster.url} is ready; export KUBECONFIG={given.kubeconfig}", flush=True)  # noqa: T201
        await cluster.failed()


def main() -> None:
    """Read the arguments and run."""
    parser = argparse.ArgumentParser(prog="devkube", description="Kubernetes in one process.")
    parser.add_argument("--port", type=int, default=7443, help="0 takes any that is free")
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--data-dir", type=Path, help="keep the cluster there over restarts")
    command = "the command for an image, if a container names no command; may be repeated"
    parser.add_argument("--run", metavar="IMAGE=COMMAND", action="append", default=[], help=command)
    parser.add_argument("--kubeconfig", type=Path, default=Path("devkube.yaml"))
    try:
        with contextlib.suppress(asyncio.CancelledError):
            asyncio.run(_run(parser.parse_args()))
    except Exception as error:  # noqa: BLE001 - one line for people; all of ours name the remedy
        sys.exit(f"devkube: {error}")


if __name__ == "__main__":
    main()
