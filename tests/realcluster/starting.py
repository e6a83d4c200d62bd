"""Scenarios of what only a real kubelet does: containers that start late, fail, or cannot start."""

from __future__ import annotations

import asyncio
import dataclasses
import time

from hack.realcluster.images import APP
from tests.e2e.workload import App
from tests.realcluster.nodes import EXECUTED, NodeTrial

_APP = "exec python3 -m tests.e2e.app"


async def slow_start(trial: NodeTrial) -> None:
    """The app takes long to start, and all clients wait."""
    app = await trial.sleeping_app(trial.new_app(start=min(trial.length.load, 20)))
    await trial.load(app)
    await trial.awake(app)
    await trial.flow_out()


async def crash_loop(trial: NodeTrial) -> None:
    """The container crashes until it is in CrashLoopBackOff; then what it lacked is there."""
    await _fails_at_first(trial, "exit 1", "CrashLoopBackOff")


async def out_of_memory(trial: NodeTrial) -> None:
    """The container is killed for its memory when it starts; the next one has enough."""
    eats = "exec python3 -c 'bytearray(512 << 20)'"
    await _fails_at_first(trial, eats, "OOMKilled")


async def image_not_there(trial: NodeTrial) -> None:
    """The image cannot be pulled: the client gets an error in time, and the next one is served."""
    absent = trial.new_app(image="localhost/absent:1", wake_timeout=8)
    await trial.sleeping_app(absent)
    probe = await trial.probe(
        await trial.environment.address(absent.namespace, absent.name), limit=5
    )
    await probe.rate(trial.length.rate)
    _, refused = await probe.finish()
    statuses = {record.status for record in refused}
    waits = sorted(record.answered - record.sent for record in refused)
    trial.notes.append(
        f"without the image: {statuses} after {waits[0]:.1f} to {waits[-1]:.1f} s"
        f" (timeoutSeconds 8): {refused[0].detail}"
    )
    assert statuses == {504}, [record.detail for record in refused]
    assert 7 < waits[0] <= waits[-1] < 12, waits
    trial.leave_out(probe)
    await _waiting_for(trial, absent, "ErrImagePull", "ImagePullBackOff")
    app = dataclasses.replace(absent, image=APP, replicas=1, wake_timeout=600)
    await trial.environment.apply(app.workload(), app.elasti_service())
    await trial.load(app)
    await trial.awake(app)
    await trial.flow(trial.length.load / 4)


async def _fails_at_first(trial: NodeTrial, failing: str, reason: str) -> None:
    fixed = trial.executed / ".fixed"
    script = f"test -e {EXECUTED}/.fixed || {failing}; {_APP}"
    app = await trial.sleeping_app(trial.new_app(command=script))
    await trial.load(app)
    await _waiting_for(trial, app, reason)
    # Its own way back: Kubernetes starts it again, after the pause that it has by then.
    await asyncio.to_thread(fixed.touch)
    began = time.monotonic()
    await trial.awake(app)
    trial.notes.append(
        f"{reason}, served {time.monotonic() - began:.1f} s after the cause was gone"
    )
    await trial.flow_out()


async def _waiting_for(trial: NodeTrial, app: App, *reasons: str) -> None:
    async def seen() -> bool:
        pods = await trial.environment.pods(trial.namespace, f"app={app.name}")
        states = [
            state
            for pod in pods
            for status in pod["status"].get("containerStatuses", [])
            for state in (*status["state"].values(), *status.get("lastState", {}).values())
        ]
        return any(state.get("reason") in reasons for state in states)

    await trial.environment.until(seen, f"a pod of {app.name} is {' or '.join(reasons)}")
