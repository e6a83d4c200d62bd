"""The dev cluster as a ground: `elasti dev` as a process of its own, and its private knobs."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from tests.e2e.ground import Ground

from kubeloop.client import Client
from kubeloop.client.request import Request

ROOT = Path(__file__).resolve().parents[3]
_COMMAND = [sys.executable, "-m", "elasti", "dev", "--port", "0", "--kubeconfig"]
_START_SECONDS = 60.0
# The service proxy is a relay and needs two descriptors for each; the rest is for everything else.
_MOST_CONNECTIONS = 5_000


class DevGround(Ground):
    """A dev cluster; see `dev_ground`."""

    name = "dev cluster"
    most_connections = _MOST_CONNECTIONS

    def __init__(self, client: Client, kubeconfig: Path) -> None:
        self.client = client
        self.kubeconfig = kubeconfig

    async def spawn(
        self,
        argv: Sequence[str],
        *,
        stdin: int | None = None,
        stdout: int | None = None,
        stderr: int | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Process:
        """Run a program here: every address is a loopback one."""
        return await asyncio.create_subprocess_exec(
            *argv, stdin=stdin, stdout=stdout, stderr=stderr, env=env, cwd=ROOT
        )

    @contextlib.asynccontextmanager
    async def api_away(self) -> AsyncIterator[None]:
        """Answer every request with 503, and break the watches."""
        await self._turn("faults", {"add": {"code": 503}, "dropWatches": True})
        try:
            yield
        finally:
            await self._turn("faults", {"clear": True})

    async def drop_watches(self) -> None:
        """Break every watch connection."""
        await self._turn("faults", {"dropWatches": True})

    async def delay_endpoints(self, seconds: float) -> None:
        """Let the service proxy be late."""
        await self._turn("proxy", {"delay": seconds})

    async def _turn(self, knob: str, command: Mapping[str, Any]) -> None:
        body = msgspec.json.encode(command)
        await self.client.send(Request(method="POST", path=f"/_dev/{knob}", body=body))


@contextlib.asynccontextmanager
async def dev_ground(directory: Path) -> AsyncIterator[DevGround]:
    """Run a dev cluster during the block; its output goes to a file in the directory."""
    kubeconfig = directory / "kubeconfig"
    with (directory / "cluster.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *_COMMAND, str(kubeconfig), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log
        )
        try:
            await _ready(process, directory)
            async with Client.from_kubeconfig([kubeconfig]) as client:
                yield DevGround(client, kubeconfig)
        finally:
            await _stop(process)


async def _ready(process: Process, directory: Path) -> None:
    assert process.stdout is not None
    said = ""
    async with asyncio.timeout(_START_SECONDS):
        while "Ctrl-C" not in said:
            line = await process.stdout.readline()
            assert line, f"`elasti dev` ended: {said}{(directory / 'cluster.log').read_text()}"
            said += line.decode()


async def _stop(process: Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    await process.communicate()
