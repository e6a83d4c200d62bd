"""What may happen to the cluster: no API server, a storage that restarts, watches that break."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from tests.e2e.trial import Trial

_DROP_EVERY = 2.0
# All of it is held until the control plane's own programs are back, a minute and more; the rig's own proxy has
# two descriptors for each.
_AWAY_RATE = 50.0
LATE = 3.0
"""How late, in seconds, the service proxy hears of endpoints."""


async def api_away(trial: Trial) -> None:
    """The API server is away while traffic arrives at a sleeping Service."""
    app = await trial.sleeping_app()
    probe = await trial.load(app, rate=0)
    async with trial.environment.testbed.api_away():
        await probe.rate(_AWAY_RATE)
        await trial.flow(trial.length.outage)
    await trial.environment.testbed.settled()
    await trial.awake(app)
    await trial.flow_out()


async def etcd_restarted(trial: Trial) -> None:
    """The API server's storage is killed and started again, under load and while the target wakes."""
    app = await trial.sleeping_app()
    await trial.load(app)
    await trial.observer.until_true(lambda: not trial.at_zero(app), f"{app.name} is scaled up")
    await trial.environment.testbed.restart_etcd()
    await trial.environment.testbed.settled()
    await trial.awake(app)
    await trial.environment.testbed.restart_etcd()
    await trial.environment.testbed.settled()
    await trial.flow_out()


async def watches_dropped(trial: Trial) -> None:
    """Every watch connection breaks every two seconds, while targets sleep and wake."""
    app = await trial.sleeping_app()
    probe = await trial.load(app, rate=0)
    async with _dropping_watches(trial):
        for _ in range(max(trial.length.cycles // 4, 2)):
            await probe.rate(trial.length.rate)
            await trial.flow(trial.length.load / 4)
            await trial.awake(app)
            await probe.rate(0)
            await trial.asleep(app)


async def late_endpoints(trial: Trial) -> None:
    """The service proxy learns of every endpoint change three seconds late."""
    app = await trial.sleeping_app()
    probe = await trial.load(app, rate=0)
    await trial.environment.testbed.delay_endpoints(LATE)
    try:
        for _ in range(max(trial.length.cycles // 4, 2)):
            await probe.rate(trial.length.rate)
            await trial.flow(trial.length.load / 4)
            await trial.awake(app)
            await trial.flow(LATE)
            await probe.rate(0)
            await trial.asleep(app)
    finally:
        await trial.environment.testbed.delay_endpoints(0)


@contextlib.asynccontextmanager
async def _dropping_watches(trial: Trial) -> AsyncIterator[None]:
    """Break watches during the block. Raises AssertionError unless they broke, again and again."""
    broken: list[int] = []

    async def drop() -> None:
        while True:
            broken.append(await trial.environment.testbed.drop_watches())
            await asyncio.sleep(_DROP_EVERY)

    task = asyncio.create_task(drop())
    try:
        yield
        assert not task.done(), f"watches stopped breaking: {task.exception()!r}"
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    rounds = sum(count > 0 for count in broken)
    trial.notes.append(f"{sum(broken)} watch connections broke in {rounds} rounds")
    # A round in which every program is still reconnecting breaks nothing.
    assert rounds > len(broken) // 2, f"connections broken in each round: {broken}"
