"""What an installation costs that has nothing to do: two operators and two resolvers, and 25 Services asleep."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.operator_objects import ELASTISERVICES, Population, name_of
from benchmarks.report import Figure, at_most
from benchmarks.runners.devcluster import started
from kubeloop.aio.wait import poll

if TYPE_CHECKING:
    from benchmarks.suites import Settings
    from kubeloop.client import Client

_SIZE = 25
_SETTLE = 20


def run(settings: Settings) -> list[Figure]:
    """Install, let all fall asleep, and count for three minutes, or one."""
    return asyncio.run(_run(settings, seconds=60 if settings.quick else 180))


async def _run(settings: Settings, *, seconds: int) -> list[Figure]:
    with tempfile.TemporaryDirectory() as directory:
        kubeconfig = Path(directory) / "kubeconfig"
        async with started(settings.cores.serving, kubeconfig) as (client, cluster, _):
            install = [sys.executable, "-m", "elasti", "install", "--kubeconfig", str(kubeconfig)]
            await asyncio.to_thread(subprocess.run, install, check=True, capture_output=True)
            await _fall_asleep(client)
            await asyncio.sleep(_SETTLE)
            programs = {name: cluster.members(name) for name in ("operator", "resolver")}
            before = [one.cpu_seconds() for found in programs.values() for one in found]
            await asyncio.sleep(seconds)
            after = [one.cpu_seconds() for found in programs.values() for one in found]
            memory = {name: [one.resident_mib() for one in programs[name]] for name in programs}
    each = [(now - then) / seconds * 1000 for then, now in zip(before, after, strict=True)]
    return [
        Figure(
            f"at rest, {_SIZE} asleep: {len(each)} programs, CPU",
            [sum(each)],
            "mCPU",
            goal=at_most(2),
            note=", ".join(f"{one:.2f}" for one in each),
        ),
        *(
            Figure(f"at rest, {_SIZE} asleep: {name}", memory[name], "MiB", goal=at_most(40))
            for name in memory
        ),
    ]


async def _fall_asleep(client: Client) -> None:
    """Make ElastiServices whose targets have no pods, and wait until the resolver stands in for each."""
    population = Population(client)
    await population.make_namespaces()
    await population.add([name_of(2 * number) for number in range(_SIZE)])  # an even one is asleep

    async def are_asleep() -> bool:
        found = [one async for one in client.resource(ELASTISERVICES).items()]
        return all(one.get("status", {}).get("mode") == "proxy" for one in found)

    await poll(are_asleep, 1.0, timeout=120)
