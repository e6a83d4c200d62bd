"""One run of `elasti operator`: started, followed by its log, weighed, stopped."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import json
import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.operator_ledger import Entry, Ledger, kinds, writes
from benchmarks.operator_places import elasti

if TYPE_CHECKING:
    import subprocess
    from collections.abc import AsyncIterator, Callable, Iterator, Mapping

    from benchmarks.operator_places import Place

SETTLED = "startup reconcile complete"
_PATIENCE = 1800.0
_LOOK = 0.05
_TICKS = os.sysconf("SC_CLK_TCK")


class Weighed:
    """A process as the kernel accounts for it; where it was entered by another, the last in the row."""

    def __init__(self, pid: int) -> None:
        self._pid = pid

    @property
    def pid(self) -> int:
        """The process itself."""
        pid = self._pid
        while children := _children(pid):
            pid = children[0]
        return pid

    def cpu(self) -> float:
        """Return the seconds of processor time used so far."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS

    def mib(self, field: str = "VmRSS") -> float:
        """Return the memory held now, or with `VmHWM` the most ever held."""
        text = Path(f"/proc/{self.pid}/status").read_text()
        return int(text.partition(f"{field}:")[2].split()[0]) / 1024


class OperatorRun:
    """A running operator. `entries` is all that the server noted since it was started."""

    def __init__(
        self, process: subprocess.Popen[bytes], *, log: Path, ledger: Ledger, calm: float
    ) -> None:
        self.process = process
        self.weighed = Weighed(process.pid)
        self.began = time.time()
        self.entries: list[Entry] = []
        self._log = log
        self._ledger = ledger
        self._calm = calm

    def look(self) -> list[Entry]:
        """Take in what the server noted; returns the new entries."""
        news = self._ledger.news()
        self.entries += news
        return news

    async def settled(self) -> dict[str, Any]:
        """Wait until everything was reconciled and nothing was written for a while.

        Returns what the start took, from the program's first instruction to its last write.
        """
        said = await self._until(self._said_settled)
        cpu = self.weighed.cpu()
        await self.until_quiet()
        last = max((entry.at for entry in self.entries if entry.is_write), default=0.0)
        return {
            "looked": said - self.began,
            "wall": max(said, last) - self.began,
            "cpu": self.weighed.cpu() if last > said else cpu,
            "writes": kinds(writes(self.entries)),
        }

    async def idle(self, seconds: float) -> dict[str, Any]:
        """Let it be for a while; returns what that cost, as a share of a core."""
        self.look()
        cpu, began = self.weighed.cpu(), time.monotonic()
        await asyncio.sleep(seconds)
        share = (self.weighed.cpu() - cpu) / (time.monotonic() - began)
        return {
            "cpu": share,
            "mib": self.weighed.mib(),
            "writes": kinds(writes(self.look())),
        }

    async def quiet_writes(self) -> dict[str, int]:
        """Wait until it has nothing to do; returns the writes that it asked for meanwhile."""
        news: list[Entry] = []
        before = -1.0
        while (now := self.weighed.cpu()) > before + 0.05:
            before = now
            await asyncio.sleep(min(1.0, self._calm))
            news += self.look()
        return kinds(writes(news))

    async def until_quiet(self) -> None:
        """Return when nothing was written for a while."""
        last = time.monotonic()
        while time.monotonic() - last < self._calm:
            if writes(self.look()):
                last = time.monotonic()
            await asyncio.sleep(_LOOK)

    async def _until(self, found: Callable[[], float | None]) -> float:
        async with asyncio.timeout(_PATIENCE):
            while (at := found()) is None:
                if self.process.poll() is not None:
                    raise RuntimeError(f"the operator ended; its log is {self._log.read_text()}")
                self.look()
                await asyncio.sleep(_LOOK)
        return at

    def _said_settled(self) -> float | None:
        return next((line["at"] for line in self.said() if line["event"] == SETTLED), None)

    def said(self) -> Iterator[dict[str, Any]]:
        """Iterate over what it logged, with the time in seconds since 1970."""
        for line in self._log.read_text().splitlines():
            with contextlib.suppress(ValueError):
                found = json.loads(line)
                yield found | {"at": _seconds(found["timestamp"])}


@contextlib.asynccontextmanager
async def operator(
    place: Place,
    *,
    core: int,
    variables: Mapping[str, str],
    kill: bool = False,
    calm: float = 3.0,
) -> AsyncIterator[OperatorRun]:
    """Run an operator for the time of the block; stopped as a pod would be, or killed.

    `calm`: after how many seconds without a write it counts as having nothing more to write.
    """
    log = place.directory / f"operator-{time.monotonic_ns()}.log"
    ledger = Ledger(place.ledger)
    ledger.news()
    with log.open("wb") as file:
        process = place.start(
            elasti("operator", "--health-probe-port", "0"),
            core=core,
            variables={
                "KUBECONFIG": str(place.operator),
                "ELASTI_OPERATOR_HOST": "127.0.0.1",
                "ELASTI_OPERATOR_PORT": str(place.operator_port),
                "ELASTI_AUTHENTICATE": "false",
                "POD_NAME": f"operator-{time.monotonic_ns()}",
                **variables,
            },
            stderr=file.fileno(),
        )
    run = OperatorRun(process, log=log, ledger=ledger, calm=calm)
    try:
        yield run
    finally:
        if process.poll() is None:
            os.kill(run.weighed.pid, signal.SIGKILL if kill else signal.SIGTERM)
        await asyncio.to_thread(process.wait)


def _children(pid: int) -> list[int]:
    with contextlib.suppress(OSError):
        return [
            int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        ]
    return []


def _seconds(text: str) -> float:
    return dt.datetime.fromisoformat(text).timestamp()
