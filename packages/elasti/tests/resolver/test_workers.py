"""The supervisor of several workers."""

from __future__ import annotations

import asyncio
import signal
import sys

from elasti.resolver.workers import WorkerSupervisor
from kubeloop.aio.tasks import finish
from tests.waiting import eventually

SLEEPS = [sys.executable, "-c", "import time; time.sleep(60)"]
ENDS_IN_TIME = [
    sys.executable, "-c",
    "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(0)); time.sleep(60)",
]  # fmt: skip


async def test_a_worker_that_dies_is_started_again():
    supervisor, stop = WorkerSupervisor([SLEEPS, SLEEPS]), asyncio.Event()
    running = asyncio.create_task(supervisor.run(stop))
    await eventually(lambda: len(supervisor.processes) == 2, every=0.01)
    victim = supervisor.processes[0]
    victim.send_signal(signal.SIGKILL)
    await eventually(
        lambda: len(supervisor.processes) == 2 and supervisor.processes[0].pid != victim.pid
    )
    stop.set()
    async with asyncio.timeout(40):
        await running
    assert not supervisor.processes


async def test_stopping_waits_until_every_worker_has_ended_by_itself():
    supervisor, stop = WorkerSupervisor([ENDS_IN_TIME]), asyncio.Event()
    running = asyncio.create_task(supervisor.run(stop))
    await eventually(lambda: len(supervisor.processes) == 1, every=0.01)
    process = supervisor.processes[0]
    stop.set()
    async with asyncio.timeout(40):
        await running
    assert process.returncode in (0, -signal.SIGTERM)


async def test_a_cancelled_supervisor_leaves_no_process():
    supervisor, stop = WorkerSupervisor([SLEEPS]), asyncio.Event()
    running = asyncio.create_task(supervisor.run(stop))
    await eventually(lambda: len(supervisor.processes) == 1, every=0.01)
    process = supervisor.processes[0]
    await finish([running])
    assert process.returncode == -signal.SIGKILL
