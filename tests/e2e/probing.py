"""The test's side of a prober: starts one, tells it what to do, takes its account."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import time
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import msgspec

from tests.e2e.environment import Address, Environment
from tests.e2e.prober.plan import Plan, Record, Summary, read_records

_START_SECONDS = 60.0


class Probe:
    """A running prober."""

    services: Sequence[str] = ()
    """The names of its targets, if they are Services."""

    def __init__(self, process: Process, plan: Plan) -> None:
        self._process = process
        self._plan = plan
        self._since: float | None = None
        self._loaded = 0.0
        self.outcome: tuple[Summary, list[Record]] | None = None

    @property
    def loaded(self) -> float:
        """For how many seconds it has been sending, all in all."""
        now = 0.0 if self._since is None else time.monotonic() - self._since
        return self._loaded + now

    async def rate(self, rate: float) -> None:
        """Send so many requests a second from now on."""
        self._loaded = self.loaded
        self._since = time.monotonic() if rate else None
        await self._tell(f"rate {rate}")

    async def all_sent(self) -> None:
        """Wait until everything within the plan's limit is on the wire."""
        assert self._process.stdout is not None
        async with asyncio.timeout(self._plan.timeout):
            assert await self._process.stdout.readline() == b"all sent\n"

    async def finish(self, *, abandon: bool = False) -> tuple[Summary, list[Record]]:
        """Send no more, wait for every answer unless they are abandoned, and return the account."""
        if self.outcome is None:
            await self._tell("abandon" if abandon else "stop")
            async with asyncio.timeout(self._plan.timeout + _START_SECONDS):
                code = await self._process.wait()
            assert code == 0, f"the prober ended with {code}"
            self.outcome = await asyncio.to_thread(read_records, Path(self._plan.records))
        return self.outcome

    async def _tell(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n".encode())
        await self._process.stdin.drain()


@contextlib.asynccontextmanager
async def probing(
    environment: Environment,
    directory: Path,
    targets: Sequence[Address],
    *,
    run: str,
    limit: int | None = None,
    timeout: float = 400.0,
    reuse: bool = True,
    host: str = "",
) -> AsyncIterator[Probe]:
    """Run a prober during the block; it waits for a rate."""
    plan = Plan(
        targets=tuple((address.host, address.port) for address in targets),
        records=str(directory / f"{run}.records"),
        run=run,
        limit=limit,
        timeout=timeout,
        reuse=reuse,
        host=host,
    )
    file = directory / f"{run}.plan"
    file.write_bytes(msgspec.json.encode(plan))
    process = await environment.testbed.spawn(
        [sys.executable, "-m", "tests.e2e.prober", str(file)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(_START_SECONDS):
            assert await process.stdout.readline() == b"ready\n"
        yield Probe(process, plan)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.communicate()
