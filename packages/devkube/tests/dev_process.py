"""`elasti dev` as a process of its own, for tests of its cost and of its sudden end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

COMMAND = [sys.executable, "-c", "from elasti.cli.main import main; main()", "dev"]


class DevProcess:
    """A running `elasti dev` and what the kernel knows about it."""

    def __init__(self, process: asyncio.subprocess.Process, kubeconfig: Path) -> None:
        self.process = process
        self.kubeconfig = kubeconfig
        self.started = time.monotonic()

    async def ready(self) -> None:
        """Wait until it says that it runs."""
        assert self.process.stdout is not None
        said = ""
        async with asyncio.timeout(30):
            while "Ctrl-C" not in said:
                line = await self.process.stdout.readline()
                assert line, f"`elasti dev` ended: {said}"
                said += line.decode()

    async def kill(self) -> None:
        """End it as `kill -9` does."""
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        assert self.process.stdout is not None
        await self.process.stdout.read()
        await self.process.wait()

    def family(self) -> list[int]:
        """Return the process and everything below it."""
        return [self.process.pid, *_descendants(self.process.pid)]

    def resident_mib(self) -> float:
        """Return the memory of the whole family."""
        return sum(_resident(pid) for pid in self.family()) / 1024

    def cpu_seconds(self) -> float:
        """Return the processor time that the whole family has used."""
        return sum(_cpu(pid) for pid in self.family())


@contextlib.asynccontextmanager
async def dev_process(directory: Path, *arguments: str) -> AsyncIterator[DevProcess]:
    kubeconfig = directory / "kubeconfig.yaml"
    process = await asyncio.create_subprocess_exec(
        *COMMAND,
        *arguments,
        *([] if "--port" in arguments else ["--port", "0"]),
        "--kubeconfig",
        str(kubeconfig),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    running = DevProcess(process, kubeconfig)
    try:
        yield running
    finally:
        await running.kill()


def _descendants(pid: int) -> list[int]:
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in map(int, (task / "children").read_text().split()):
                found += [child, *_descendants(child)]
    return found


def _resident(pid: int) -> int:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1])
    return 0


def _cpu(pid: int) -> float:
    with contextlib.suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return 0.0


def processes_with(mark: str) -> list[int]:
    """Return the processes whose command line contains a mark."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if mark.encode() in path.read_bytes():
                found.append(int(path.parent.name))
    return found


def still_there(pids: list[int]) -> list[int]:
    """Return those processes that have not ended."""
    return [pid for pid in pids if Path(f"/proc/{pid}").exists()]
