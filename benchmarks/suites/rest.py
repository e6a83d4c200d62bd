"""What an installation costs that has nothing to do: two operators and two resolvers on a dev cluster."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.report import Figure, at_most
from benchmarks.runners.devcluster import started

if TYPE_CHECKING:
    from benchmarks.suites import Settings

_SETTLE = 20


def run(settings: Settings) -> list[Figure]:
    """Install, let it settle, and count for three minutes."""
    return asyncio.run(_run(settings, seconds=30 if settings.quick else 180))


async def _run(settings: Settings, *, seconds: int) -> list[Figure]:
    with tempfile.TemporaryDirectory() as directory:
        kubeconfig = Path(directory) / "kubeconfig"
        async with started(settings.cores.serving, kubeconfig) as (_, cluster, _):
            install = [sys.executable, "-m", "elasti", "install", "--kubeconfig", str(kubeconfig)]
            await asyncio.to_thread(subprocess.run, install, check=True, capture_output=True)
            await asyncio.sleep(_SETTLE)
            programs = {name: cluster.members(name) for name in ("operator", "resolver")}
            before = [one.cpu_seconds() for found in programs.values() for one in found]
            await asyncio.sleep(seconds)
            after = [one.cpu_seconds() for found in programs.values() for one in found]
            memory = {name: [one.resident_mib() for one in programs[name]] for name in programs}
    each = [(now - then) / seconds * 1000 for then, now in zip(before, after, strict=True)]
    return [
        Figure(
            f"at rest: {len(each)} programs, CPU",
            [sum(each)],
            "mCPU",
            goal=at_most(2),
            note=", ".join(f"{one:.2f}" for one in each),
        ),
        *(Figure(f"at rest: {name}", memory[name], "MiB", goal=at_most(40)) for name in memory),
    ]
