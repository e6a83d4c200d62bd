"""The demo as its user runs it: the real programs as pods of a dev cluster, real requests."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from elasti.cli.demo.manifests import TEAMS
from kubeloop.objects.meta import JsonObject
from tests.e2e.testbed import pids_with

COMMAND = [sys.executable, "-m", "elasti", "demo"]


class Demo:
    """A demo that runs, in a home of its own, by which its pods are known."""

    def __init__(self, process: asyncio.subprocess.Process, home: Path) -> None:
        self.process = process
        self._home = home

    @classmethod
    async def start(cls, home: Path, *more: str) -> Demo:
        process = await asyncio.create_subprocess_exec(
            *COMMAND,
            *more,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env={**os.environ, "HOME": str(home)},
        )
        return cls(process, home)

    async def said(self, words: str) -> str:
        """Return what it has printed up to these words."""
        assert self.process.stdout is not None
        text = ""
        while words not in text:
            line = (await self.process.stdout.readline()).decode()
            assert line, text
            text += line
        return text

    async def interrupted(self) -> int | None:
        """Interrupt it, and return how it ended."""
        self.process.send_signal(signal.SIGINT)
        await self.process.communicate()
        return self.process.returncode

    def left(self) -> list[int]:
        """Return the processes of its pods that are still there."""
        return pids_with(f"HOME={self._home}")


@pytest.mark.timeout(300)
async def test_apps_sleep_are_woken_by_a_burst_and_sleep_again_and_nothing_is_lost(tmp_path: Path):
    demo = await Demo.start(tmp_path)
    output, _ = await demo.process.communicate()
    text = output.decode()
    assert demo.process.returncode == 0, text
    assert "24 requests, 0 lost" in text
    assert "For your own app: docs/start.md." in text
    assert "web is waking" in text
    assert "the last held request is answered" in text
    held = [int(ms) for ms in re.findall(r"GET \S+\s+200\s+(\d+) ms", text)]
    assert len(held) == 20
    assert min(held) > 500, "the app takes a second to start, so everybody must have been held"
    assert demo.left() == []


@pytest.mark.timeout(300)
async def test_kept_it_can_be_explored_until_ctrl_c(tmp_path: Path):
    demo = await Demo.start(tmp_path, "--keep")
    found = re.search(r"export KUBECONFIG=(\S+)", await demo.said("curl"))
    assert found is not None
    explored = await asyncio.create_subprocess_exec(
        *[sys.executable, "-m", "elasti", "get", "web", "-o", "json", "--kubeconfig", found[1]],
        stdout=asyncio.subprocess.PIPE,
    )
    output, _ = await explored.communicate()
    assert explored.returncode == 0
    assert b'"state": "asleep"' in output
    assert demo.left()
    assert await demo.interrupted() == 0
    assert not os.path.exists(found[1])  # noqa: ASYNC240, PTH110 -- nothing else runs here
    assert demo.left() == []


async def rows(page: str) -> AsyncIterator[dict[str, JsonObject]]:
    """Yield the dashboard's rows by key, again after each change."""
    async with aiohttp.ClientSession() as session:
        async with session.get(page) as opened:
            base = str(opened.url)
        found: dict[str, JsonObject] = {}
        async with session.get(f"{base}api/events") as events:
            async for line in events.content:
                data = json.loads(line[6:]) if line.startswith(b"data: {") else {}
                found |= {row["key"]: row for row in data.get("rows", ())}
                yield found


@pytest.mark.timeout(300)
async def test_a_fleet_of_a_hundred_is_in_the_dashboard_and_wakes_one_by_one(tmp_path: Path):
    demo = await Demo.start(tmp_path, "--fleet")
    page = re.search(r"The dashboard is at (\S+)", await demo.said("?code="))
    assert page is not None
    async for found in rows(page[1]):
        states = [row["state"] for row in found.values()]
        if len(states) == 100 and states.count("asleep") > 80 and "awake" in states:
            break
    assert {row["namespace"] for row in found.values()} == set(TEAMS)
    assert await demo.interrupted() == 0
    assert demo.left() == []


@pytest.mark.timeout(180)
@pytest.mark.parametrize("moment", ["ready at", "running"])
async def test_ctrl_c_leaves_nothing_behind(tmp_path: Path, moment: str):
    demo = await Demo.start(tmp_path)
    await demo.said(moment)
    assert await demo.interrupted() == 0
    assert demo.left() == []
