"""What may happen to operator and resolver themselves: rollouts, upgrades, sudden ends."""

from __future__ import annotations

import asyncio
import dataclasses

from tests.e2e import bundle
from tests.e2e.play import Play
from tests.e2e.workload import ALWAYS_IDLE, App

# Long enough that a rollout begins and ends while everybody is held.
_SLOW_START = 6.0


async def resolver_rollout(play: Play) -> None:
    """Every resolver pod is replaced while requests are held, and again while they are forwarded."""
    app = await play.sleeping_app(_always_in_the_way(play, start=_SLOW_START))
    await play.load(app)
    await play.stage.roll(bundle.RESOLVER)
    await play.observer.until_true(lambda: bool(play.pods(app, "ready")), "the app is ready")
    await play.stage.roll(bundle.RESOLVER)
    await play.flow_out()
    await _old_pods_are_gone(play, bundle.RESOLVER_SELECTOR)


async def leader_killed_while_parking(play: Play) -> None:
    """The operator that leads dies at the moment at which it sets the target to zero."""
    app = await play.serving_app()
    probe = await play.load(app, rate=0)
    leader = await play.stage.leader()
    await play.observer.until_true(lambda: play.at_zero(app), f"{app.name} is at zero")
    await play.stage.lose(leader)
    await probe.rate(play.length.rate)
    await play.awake(app)
    await play.flow_out()


async def leader_killed_while_engaging(play: Play) -> None:
    """The operator that leads dies while pods and resolver are both in rotation."""
    app = await play.serving_app()
    probe = await play.load(app, rate=0)
    leader = await play.stage.leader()
    await play.observer.until("state", app.name, "Engaging")
    await play.stage.lose(leader)
    await probe.rate(play.length.rate)
    await play.flow(play.length.load / 4)
    await play.awake(app)
    await play.flow_out()


async def leader_killed_while_waking(play: Play) -> None:
    """The operator that leads dies when the target was scaled up and nothing runs yet."""
    app = await play.sleeping_app()
    leader = await play.stage.leader()
    await play.load(app)
    await play.observer.until_true(lambda: not play.at_zero(app), f"{app.name} is scaled up")
    await play.stage.lose(leader)
    await play.awake(app)
    await play.flow_out()


async def upgrade(play: Play) -> None:
    """Operator and resolver are brought to a new version under load, and put targets to sleep after."""
    installed = play.stage.installed
    assert installed is not None
    sleeping = await play.sleeping_app(play.new_app("asleep"))
    busy = await play.sleeping_app(_always_in_the_way(play))
    await play.load(busy)
    await play.observer.until_true(lambda: bool(play.pods(busy, "ready")), "the app is ready")
    newer = dataclasses.replace(installed, version=f"{installed.version}-next")
    rollout = asyncio.create_task(play.stage.install(newer))
    try:
        probe = await play.load(sleeping)
        await rollout
    finally:
        rollout.cancel()
    await play.flow_out()
    await probe.rate(0)
    await play.asleep(sleeping)
    images = {
        container["image"]
        for pod in (*await play.stage.operator_pods(), *await play.stage.resolver_pods())
        for container in pod["spec"]["containers"]
    }
    assert images == {f"elasti:{newer.version}"}
    await _old_pods_are_gone(play, bundle.RESOLVER_SELECTOR)


def _always_in_the_way(play: Play, start: float = 1.0) -> App:
    """Return an app that the operator tries to put to sleep all the time, in spite of its traffic."""
    return play.new_app(trigger=ALWAYS_IDLE, cooldown=1, start=start)


async def _old_pods_are_gone(play: Play, selector: str) -> None:
    """Wait until whoever was replaced has served what it held, and ended by itself."""
    pods = play.stage.client.resource("v1/pods", namespace=bundle.NAMESPACE)

    async def gone() -> bool:
        found = [pod async for pod in pods.items(selector=selector)]
        return not any(pod["metadata"].get("deletionTimestamp") for pod in found)

    await play.stage.until(gone, "every replaced pod has ended")
