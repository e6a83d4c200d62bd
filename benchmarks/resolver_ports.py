"""Ten thousand ports: `elasti resolver` as it is installed, bound to one for each of as many Services.

How long it takes from its start to the last bound port, what a port costs in memory, how long a
connection waits meanwhile, and whether everything is given back when the ElastiServices are gone.

    .venv/bin/python -m benchmarks.resolver_ports [--quick]
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tests.resolver.installation import installation

from benchmarks.processes import Cores, RunFailed
from benchmarks.report import Figure, Report, at_least, at_most
from benchmarks.suites import Settings
from elasti.api.wire import probe_request, read_probe_answer

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.resolver.installation import Running

_FIRST, _PORTS, _FEW = 20_000, 10_000, 500
_ASKED = 300
_AT_ONCE = 32
_PATIENCE = 300.0
# Descriptors beside the ports': watches, the admin port, the log.
_OTHERS = 60


def run(settings: Settings) -> list[Figure]:
    """Bind, ask, unbind."""
    ports = _FEW if settings.quick else _PORTS
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(_measure(Path(folder), ports, settings.cores))


async def _measure(folder: Path, ports: int, cores: Cores) -> list[Figure]:
    os.sched_setaffinity(0, {cores.serving})
    async with installation(folder) as made:
        async with made.resolver(ready=False) as running:
            await _until(running, 0)
            idle = _rss(running)
        await _in_parallel(ports, lambda n: made.ports(_name(n), _FIRST + n))
        async with made.resolver(ready=False) as running:
            os.sched_setaffinity(running.process.pid, {cores.measured})
            began = time.monotonic()
            await _until(running, ports)
            bound = time.monotonic() - began
            each = (_rss(running) - idle) / ports
            descriptors = _descriptors(running)
            answered = await _ask_some(ports)
            began = time.monotonic()
            await made.remove_all()
            removed = time.monotonic()
            await _until(running, 0)
            unbound = time.monotonic() - began
            after, left = _rss(running), _descriptors(running)
    return [
        Figure(f"resolver: start to {ports} ports bound", [bound], "s", goal=at_most(60.0)),
        Figure(
            f"resolver: RSS of each of {ports} ports", [each], "B",
            note=f"{idle / 2**20:.0f} MiB without any, {descriptors} descriptors",
        ),
        Figure(
            f"resolver: of {_ASKED} ports those that say whose they are", [answered], "",
            goal=at_least(_ASKED),
        ),
        Figure(
            f"resolver: {ports} ElastiServices gone to the last port closed", [unbound], "s",
            goal=at_most(60.0),
            note=f"of these the API server took {removed - began:.1f} s; "
            f"{after / 2**20:.0f} MiB and {left} descriptors after",
        ),
    ]  # fmt: skip


def _name(number: int) -> str:
    return f"web-{number}"


async def _in_parallel(count: int, make: Callable[[int], Awaitable[None]]) -> None:
    numbers = iter(range(count))

    async def some() -> None:
        for number in numbers:
            await make(number)

    async with asyncio.TaskGroup() as group:
        for _ in range(_AT_ONCE):
            group.create_task(some())


async def _ask_some(ports: int) -> int:
    """Ask some ports whose they are; returns how many told the truth."""
    right = 0
    for number in random.Random(1).choices(range(ports), k=_ASKED):
        reader, writer = await asyncio.open_connection("127.0.0.1", _FIRST + number)
        writer.write(probe_request("default", _name(number)))
        identity = read_probe_answer(await reader.read())
        writer.close()
        right += identity is not None and identity.service == _name(number)
    return right


async def _until(running: Running, ports: int) -> None:
    """Wait until it is ready and has sockets for so many ports."""
    deadline = time.monotonic() + _PATIENCE
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            if await running.is_ready() and abs(_descriptors(running) - ports) < _OTHERS:
                return
        await asyncio.sleep(0.05)
    counted = _descriptors(running)
    raise RunFailed(f"{counted} descriptors, {ports} ports: {running.log.read_text()[-500:]}")


def _rss(running: Running) -> int:
    pages = Path(f"/proc/{running.process.pid}/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGESIZE")


def _descriptors(running: Running) -> int:
    return len(list(Path(f"/proc/{running.process.pid}/fd").iterdir()))


def main() -> None:
    """Run this suite alone."""
    settings = Settings(quick="--quick" in sys.argv, cores=Cores.of_this_machine())
    print(Report(run(settings)).table())


if __name__ == "__main__":
    main()
