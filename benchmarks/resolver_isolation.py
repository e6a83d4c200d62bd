"""Whether a Service with thousands of held connections slows the wake-up of another one.

    .venv/bin/python -m benchmarks.resolver_isolation [--quick]

What the resolver adds to a wake-up is measured with the whole program: from a client's request to the
operator's hearing of it, and from the pod's first answer to the client's first byte. Blocks of rounds
alternate between a resolver that holds nobody else and one that holds a crowd for another Service.
"""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import sys
from typing import TYPE_CHECKING

from benchmarks.processes import Cores
from benchmarks.report import Figure, Report, times_at_most
from benchmarks.resolver_whole import whole
from benchmarks.suites import Settings

if TYPE_CHECKING:
    from benchmarks.resolver_whole import Outcome, Whole

_CROWD, _SMALL = 9_000, 1_000
_INTERVAL = 0.025
_BLOCKS = ("alone", "beside", "beside", "alone", "alone", "beside")


def run(settings: Settings) -> list[Figure]:
    """Measure blocks of rounds, alone and beside a crowd."""
    return asyncio.run(_measure(settings))


async def _measure(settings: Settings) -> list[Figure]:
    crowd = _SMALL if settings.quick else _CROWD
    rounds = 4 if settings.quick else 25
    outcomes: dict[str, list[Outcome]] = {"alone": [], "beside": []}
    async with whole(settings.cores) as running:
        await running.round(1)
        port = await running.sleeping("crowd")
        for block in _BLOCKS:
            async with contextlib.AsyncExitStack() as stack:
                if block == "beside":
                    await stack.enter_async_context(running.held("crowd", port, crowd))
                outcomes[block] += await _rounds(running, rounds)
    return _figures(outcomes, crowd)


async def _rounds(running: Whole, rounds: int) -> list[Outcome]:
    """Run some rounds whose instants are spread over the prober's beat, as evenly in each block."""
    return [await running.round(1, phase=_INTERVAL * number / rounds) for number in range(rounds)]


def _figures(outcomes: dict[str, list[Outcome]], crowd: int) -> list[Figure]:
    added = {
        block: [outcome.asked + outcome.delays[0] for outcome in found]
        for block, found in outcomes.items()
    }
    alone = statistics.mean(added["alone"])
    parts = {
        block: f"{statistics.median(o.asked for o in found):.1f} to the operator,"
        f" {statistics.median(o.delays[0] for o in found):.1f} from the pod"
        for block, found in outcomes.items()
    }
    return [
        Figure(
            "resolver as installed: what it adds to a wake-up, alone",
            [alone],
            "ms",
            note=f"mean of {len(added['alone'])}; medians {parts['alone']}",
        ),
        Figure(
            f"resolver as installed: the same beside {crowd} held for another Service",
            [statistics.mean(added["beside"])],
            "ms",
            reference=alone,
            goal=times_at_most(1.1),
            note=f"mean of {len(added['beside'])}; medians {parts['beside']}",
        ),
    ]


def main() -> None:
    """Run this suite alone."""
    settings = Settings(quick="--quick" in sys.argv, cores=Cores.of_this_machine())
    print(Report(run(settings)).table())


if __name__ == "__main__":
    main()
