"""Scenarios of apps of several parts with a real PostgreSQL, which keeps its data in a volume."""

from __future__ import annotations

import dataclasses

from hack.realcluster.images import SERVERS
from tests.e2e.scenarios import parts
from tests.e2e.scenarios.parts import APPS, DATABASE_STARTS, PATIENT, RESTS, Database
from tests.realcluster.databases import postgres, sleep, there
from tests.realcluster.nodes import NodeTrial


async def one_app(trial: NodeTrial) -> None:
    """A request wakes PostgreSQL, an app that exits without it, and a worker; nothing is restarted."""
    await parts.woken_together(trial, trial.new_app(image=SERVERS), await _postgresql(trial))


async def ten_of_forty_apps(trial: NodeTrial) -> None:
    """Ten of forty apps on one PostgreSQL are woken at once; it sleeps after the last of them."""
    apps = [trial.new_app(f"app-{number:02}", image=SERVERS) for number in range(APPS)]
    await parts.share(trial, apps, await _postgresql(trial))


async def _postgresql(trial: NodeTrial) -> Database:
    """Put one to sleep that has its data already, and takes its time to start."""
    ready = {"exec": {"command": ["sh", "-c", "pg_isready --host $(hostname -i) --quiet"]}}
    slow = postgres(ready, prepare=f"sleep {DATABASE_STARTS}")
    server = dataclasses.replace(slow, kind="StatefulSet", spec=RESTS)
    await there(trial, server)
    await sleep(trial, server)
    asking = "psql --host postgres --username app postgres --command 'select 1'"
    return Database(
        name=server.name,
        ask=f"PGCONNECT_TIMEOUT={PATIENT} {asking}",
        app="exec python3 -m tests.e2e.app",
    )
