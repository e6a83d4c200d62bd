"""Plays scenarios on the real nodes, several at a time, on a loop that outlives single tests.

`ELASTI_REALCLUSTER=full make realcluster-test` plays all of them at full length.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
from concurrent.futures import Future
from pathlib import Path
from typing import Self

from kubeloop.client import Client
from tests.e2e import running
from tests.e2e.settings import FULL, ROOT, SHORT, Settings
from tests.e2e.table import Scenario
from tests.realcluster.nodes import HASTY, Nodes, NodeTrial
from tests.realcluster.rig import Rig
from tests.side_loop import SideLoop

AT_ONCE = 4
# Two cores carry the cluster, the apps and their load.
LENGTHS = {
    "short": dataclasses.replace(SHORT, rate=50, load=10, cycles=3, moments=3),
    "full": dataclasses.replace(FULL, rate=50, load=60, cycles=20, moments=12),
}
START_SECONDS = 60.0


def current() -> Settings:
    """Return how long this session's scenarios are, and where their report goes."""
    name = os.environ.get("ELASTI_REALCLUSTER") or "short"
    if name not in LENGTHS:
        raise ValueError(f"ELASTI_REALCLUSTER: {name!r} is neither 'short' nor 'full'")
    return Settings(LENGTHS[name], ROOT / "build" / "realcluster")


class Stage:
    """A `with` block. Scenarios that share the cluster are begun together; others wait for the end."""

    def __init__(self, rig: Rig, settings: Settings, directory: Path) -> None:
        self._rig = rig
        self._settings = settings
        self._directory = directory
        self._loop = SideLoop("scenarios", self._main, start_seconds=START_SECONDS)
        self._places = asyncio.Semaphore(AT_ONCE)
        self._begun: dict[str, Future[None]] = {}

    def __enter__(self) -> Self:
        self._loop.start()
        return self

    def __exit__(self, *_: object) -> None:
        for future in self._begun.values():
            future.cancel()
        self._loop.stop()

    async def _main(self, loop: SideLoop) -> None:
        async with Client.from_kubeconfig([Path(self._rig.state.kubeconfig)]) as client:
            self._nodes = Nodes(self._rig, client)
            self._nodes.installed = HASTY
            loop.ready()
            await loop.until_stopped()

    def begin(self, *scenarios: Scenario) -> None:
        """Play scenarios that do not disturb each other, as many at once as the machine carries."""
        for scenario in scenarios:
            if scenario.name not in self._begun:
                self._begun[scenario.name] = self._loop.submit(self._in_turn(scenario))

    def end(self, scenario: Scenario) -> None:
        """Return when one that was begun is over; raises what it failed with."""
        self._begun[scenario.name].result()

    def alone(self, scenario: Scenario) -> None:
        """Play a scenario that must have the cluster for itself."""
        for future in self._begun.values():
            future.exception()
        self._loop.submit(self._played(scenario)).result()

    async def _in_turn(self, scenario: Scenario) -> None:
        async with self._places:
            await self._played(scenario)

    async def _played(self, scenario: Scenario) -> None:
        directory = self._directory / scenario.name
        await running.run(self._nodes, scenario, self._settings, directory, kind=NodeTrial)
