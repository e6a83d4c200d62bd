"""The demo as its user runs it: the real programs as pods of a dev cluster, real requests."""

from __future__ import annotations

import asyncio
import re
import signal
import sys
from pathlib import Path

import pytest

COMMAND = [sys.executable, "-m", "elasti", "demo"]


async def start(*more: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *COMMAND, *more, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )


def programs_of_the_demo() -> list[str]:
    """Return the command lines of pods that are still there."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
        if "elasti.cli.demo.sample_" in words:
            found.append(words)
    return found


@pytest.mark.timeout(200)
async def test_apps_sleep_are_woken_by_a_burst_and_sleep_again_and_nothing_is_lost():
    process = await start()
    output, errors = await process.communicate()
    text = output.decode()
    assert process.returncode == 0, text + errors.decode()
    assert "24 requests, 0 lost" in text
    assert "web: Waking" in text
    assert re.search(r"the last held request is answered", text)
    held = [int(ms) for ms in re.findall(r"GET \S+\s+200\s+(\d+) ms", text)]
    assert len(held) == 20
    assert min(held) > 500, "the app takes a second to start, so everybody must have been held"
    assert programs_of_the_demo() == []


@pytest.mark.timeout(60)
async def test_ctrl_c_leaves_nothing_behind():
    process = await start()
    assert process.stdout is not None
    while b"running" not in await process.stdout.readline():
        assert process.returncode is None
    process.send_signal(signal.SIGINT)
    await process.communicate()
    assert process.returncode == 0
    assert programs_of_the_demo() == []
