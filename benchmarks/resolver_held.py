"""Connections that `elasti resolver` holds: what each costs, and that all are served in order."""

from __future__ import annotations

import asyncio
import resource
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.report import Figure, Report, at_least, at_most
from benchmarks.resolver_servers import backend
from benchmarks.resolver_whole import whole

if TYPE_CHECKING:
    from benchmarks.suites import Settings

_CROWD = 10_000


def run(settings: Settings) -> list[Figure]:
    """Hold a crowd, and release it."""
    return asyncio.run(_crowd(settings))


async def _crowd(settings: Settings) -> list[Figure]:
    crowd = 2_000 if settings.quick else _CROWD
    with backend(settings.cores.serving) as pod:
        async with whole(settings.cores) as made:
            port = await made.sleeping("crowd")
            # What the first of them brings is not theirs: modules, buffers, the handler of the port.
            async with made.held("crowd", port, 1):
                pass
            before = _rss(made.pid)
            async with made.held("crowd", port, crowd) as (clients, _):
                each = (_rss(made.pid) - before) / crowd
                at = time.monotonic()
                await made.ready("crowd", pod.port)
                answers = [await client.hear() for client in clients]
    served = crowd - sum(answer["errors"] + answer["unanswered"] for answer in answers)
    last = max(answer["last"] for answer in answers) - at
    return [
        Figure(
            name=f"resolver: RSS of each of {crowd} held connections",
            samples=[each],
            unit="B",
            goal=at_most(4096.0),
        ),
        Figure(
            name=f"resolver: of {crowd} held connections served, in order",
            samples=[served],
            unit="",
            goal=at_least(crowd),
            note=f"the last of them {last:.2f} s after the pod was written Ready",
        ),
    ]


def _rss(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()


def main() -> None:
    """Run this suite alone."""
    from benchmarks.processes import Cores  # noqa: PLC0415 -- as the package's own main does
    from benchmarks.suites import Settings  # noqa: PLC0415 -- as above

    settings = Settings(quick="--quick" in sys.argv, cores=Cores.of_this_machine())
    print(Report(run(settings)).table())


if __name__ == "__main__":
    main()
