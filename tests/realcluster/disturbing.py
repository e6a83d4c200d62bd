"""Scenarios that nobody else can share the cluster with: drained nodes, an uninstallation."""

from __future__ import annotations

import asyncio

from tests.e2e.workload import ALWAYS_IDLE
from tests.realcluster.nodes import NodeTrial


async def node_drained(trial: NodeTrial) -> None:
    """A node is drained while requests are held and others served, and comes back."""
    # The probers are on node-1, which stays.
    busy = await trial.sleeping_app(trial.new_app("busy", trigger=ALWAYS_IDLE, cooldown=1))
    asleep = await trial.sleeping_app(trial.new_app("asleep", start=3))
    await trial.load(busy)
    await trial.awake(busy)
    await trial.load(asleep)
    words = ["drain", "node-2", "--ignore-daemonsets", "--delete-emptydir-data", "--force"]
    try:
        await asyncio.to_thread(trial.rig.kubectl, *words, "--timeout=240s")
        await trial.awake(asleep)
        await trial.flow_out()
    finally:
        await asyncio.to_thread(trial.rig.kubectl, "uncordon", "node-2")


async def uninstalled(trial: NodeTrial) -> None:
    """Elasti is uninstalled while requests are held and others served."""
    busy = await trial.sleeping_app(trial.new_app("busy"))
    asleep = await trial.sleeping_app(trial.new_app("asleep", start=3))
    await trial.load(busy)
    await trial.awake(busy)
    await trial.load(asleep)
    await asyncio.to_thread(trial.rig.elasti, "uninstall", "--yes")
    trial.environment.installed = None
    await trial.flow_out()
    for app in (busy, asleep):
        assert await trial.environment.replicas(trial.namespace, app.name) == 1
