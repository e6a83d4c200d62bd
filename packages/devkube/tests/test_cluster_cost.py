"""What a dev cluster costs, with slack for a busy machine; `benchmarks` has the exact numbers."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from tests.cluster_support import Kubectl, kubectls
from tests.dev_process import dev_process

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not kubectls(), reason="no kubectl: make controlplane builds one"),
]
START_SECONDS = 2.0
RESIDENT_MIB = 120.0
IDLE_CPU = 0.02
SLACK = 3.0


async def test_kubectl_is_answered_soon_and_idling_costs_nothing(tmp_path: Path) -> None:
    async with dev_process(tmp_path) as dev:
        await dev.ready()
        await Kubectl(tmp_path)("get", "nodes")
        # A start is work, not waiting: on a machine with a core to spare it takes its processor time.
        assert dev.cpu_seconds() < START_SECONDS
        assert time.monotonic() - dev.started < START_SECONDS * 10
        # Whatever a start leaves to do is over when a whole second passes without work.
        async with asyncio.timeout(20):
            before = dev.cpu_seconds()
            while True:
                await asyncio.sleep(1.0)
                now = dev.cpu_seconds()
                if now - before <= 0.02:
                    break
                before = now
        await asyncio.sleep(3.0)
        assert (dev.cpu_seconds() - now) / 3.0 <= IDLE_CPU * SLACK
        assert dev.resident_mib() < RESIDENT_MIB
