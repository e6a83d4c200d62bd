"""What may happen to operator and resolver themselves: rollouts, upgrades, sudden ends."""

from __future__ import annotations

import asyncio
import dataclasses

from tests.e2e import bundle
from tests.e2e.trial import Trial
from tests.e2e.workload import ALWAYS_IDLE, App

# Long enough that a rollout begins and ends while everybody is held.
_SLOW_START = 6.0


async def resolver_rollout(trial: Trial) -> None:
    """Every resolver pod is replaced while requests are held, and again while they are forwarded."""
    app = await trial.sleeping_app(_always_in_the_way(trial, start=_SLOW_START))
    await trial.load(app)
    await trial.environment.roll(bundle.RESOLVER)
    await trial.observer.until_true(lambda: bool(trial.pods(app, "ready")), "the app is ready")
    await trial.environment.roll(bundle.RESOLVER)
    await trial.flow_out()
    await _old_pods_are_gone(trial, bundle.RESOLVER_SELECTOR)


async def leader_killed_while_parking(trial: Trial) -> None:
    """The operator that leads dies at the moment at which it sets the target to zero."""
    app = await trial.serving_app()
    probe = await trial.load(app, rate=0)
    leader = await trial.environment.leader()
    await trial.observer.until_true(lambda: trial.at_zero(app), f"{app.name} is at zero")
    await trial.environment.lose(leader)
    await probe.rate(trial.length.rate)
    await trial.awake(app)
    await trial.flow_out()


async def leader_killed_while_engaging(trial: Trial) -> None:
    """The operator that leads dies while pods and resolver are both in rotation."""
    app = await trial.serving_app()
    probe = await trial.load(app, rate=0)
    leader = await trial.environment.leader()
    await trial.observer.until("slice", app.name, "published")
    await trial.environment.lose(leader)
    await probe.rate(trial.length.rate)
    await trial.flow(trial.length.load / 4)
    await trial.awake(app)
    await trial.flow_out()


async def leader_killed_while_waking(trial: Trial) -> None:
    """The operator that leads dies when the target was scaled up and nothing runs yet."""
    app = await trial.sleeping_app()
    leader = await trial.environment.leader()
    await trial.load(app)
    await trial.observer.until_true(lambda: not trial.at_zero(app), f"{app.name} is scaled up")
    await trial.environment.lose(leader)
    await trial.awake(app)
    await trial.flow_out()


async def upgrade(trial: Trial) -> None:
    """Operator and resolver are brought to a new version under load, and put targets to sleep after."""
    installed = trial.environment.installed
    assert installed is not None
    sleeping = await trial.sleeping_app(trial.new_app("asleep"))
    busy = await trial.sleeping_app(_always_in_the_way(trial))
    await trial.load(busy)
    await trial.observer.until_true(lambda: bool(trial.pods(busy, "ready")), "the app is ready")
    newer = dataclasses.replace(installed, version=f"{installed.version}-next")
    rollout = asyncio.create_task(trial.environment.install(newer))
    try:
        probe = await trial.load(sleeping)
        await rollout
    finally:
        rollout.cancel()
    await trial.flow_out()
    await probe.rate(0)
    await trial.asleep(sleeping)
    images = {
        container["image"]
        for pod in (
            *await trial.environment.operator_pods(),
            *await trial.environment.resolver_pods(),
        )
        for container in pod["spec"]["containers"]
    }
    assert images == {newer.choices().image}
    await _old_pods_are_gone(trial, bundle.RESOLVER_SELECTOR)


def _always_in_the_way(trial: Trial, start: float = 1.0) -> App:
    """Return an app that the operator tries to put to sleep all the time, in spite of its traffic."""
    return trial.new_app(trigger=ALWAYS_IDLE, cooldown=1, start=start)


async def _old_pods_are_gone(trial: Trial, selector: str) -> None:
    """Wait until whoever was replaced has served what it held, and ended by itself."""
    pods = trial.environment.client.resource("v1/pods", namespace=bundle.NAMESPACE)

    async def gone() -> bool:
        found = [pod async for pod in pods.items(selector=selector)]
        return not any(pod["metadata"].get("deletionTimestamp") for pod in found)

    await trial.environment.until(gone, "every replaced pod has ended")
