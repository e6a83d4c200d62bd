"""The dev cluster as a testbed: `elasti dev` as a process of its own, and its private knobs."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from kubeloop.client import Client
from kubeloop.client.request import Request
from tests.e2e.testbed import Testbed

_COMMAND = [sys.executable, "-m", "elasti", "dev", "--port", "0", "--kubeconfig"]
# The service proxy is a relay and needs two descriptors for each; the rest is for everything else.
_MOST_CONNECTIONS = 5_000


class DevTestbed(Testbed):
    """A dev cluster; see `dev_testbed`."""

    name = "dev cluster"
    most_connections = _MOST_CONNECTIONS

    def __init__(self, client: Client, kubeconfig: Path) -> None:
        self.client = client
        self.kubeconfig = kubeconfig

    @contextlib.asynccontextmanager
    async def api_away(self) -> AsyncIterator[None]:
        """Answer every request with 503, and break the watches."""
        await self._turn("faults", {"add": {"code": 503}, "dropWatches": True})
        try:
            yield
        finally:
            await self._turn("faults", {"clear": True})

    async def drop_watches(self) -> int:
        """Break every watch connection; returns how many."""
        before = (await self._turn("faults", {}))["droppedWatches"]
        return int((await self._turn("faults", {"dropWatches": True}))["droppedWatches"]) - before

    async def delay_endpoints(self, seconds: float) -> None:
        """Let the service proxy be late."""
        await self._turn("proxy", {"delay": seconds})

    async def _turn(self, knob: str, command: Mapping[str, Any]) -> Any:
        body = msgspec.json.encode(command)
        answer = await self.client.send(Request(method="POST", path=f"/_dev/{knob}", body=body))
        return msgspec.json.decode(answer.body)


class DevProcess:
    """A dev cluster's process; it lives from `start` to `stop`, on no event loop."""

    def __init__(self, directory: Path) -> None:
        self.kubeconfig = directory / "kubeconfig"
        self.log = directory / "cluster.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and return when it serves."""
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [*_COMMAND, str(self.kubeconfig)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        assert self._process.stdout is not None
        said = b""
        while b"Ctrl-C" not in said:
            line = self._process.stdout.readline()
            assert line, f"`elasti dev` ended: {said.decode()}{self.log.read_text()}"
            said += line

    def stop(self) -> None:
        """End it, and every pod."""
        if self._process is not None:
            self._process.terminate()
            self._process.communicate()

    @contextlib.asynccontextmanager
    async def testbed(self) -> AsyncIterator[DevTestbed]:
        """Return the cluster as a testbed, for the running loop."""
        async with Client.from_kubeconfig([self.kubeconfig]) as client:
            yield DevTestbed(client, self.kubeconfig)


@contextlib.asynccontextmanager
async def dev_testbed(directory: Path) -> AsyncIterator[DevTestbed]:
    """Run a dev cluster during the block; its output goes to a file in the directory."""
    process = DevProcess(directory)
    await asyncio.to_thread(process.start)
    try:
        async with process.testbed() as testbed:
            yield testbed
    finally:
        await asyncio.to_thread(process.stop)
