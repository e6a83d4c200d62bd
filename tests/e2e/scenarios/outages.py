"""What may happen to the cluster: no API server, a storage that restarts, watches that break."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from tests.e2e.play import Play

_DROP_EVERY = 2.0
LATE = 3.0
"""How late, in seconds, the service proxy hears of endpoints."""


async def api_away(play: Play) -> None:
    """Nobody reaches the API server while traffic arrives at a sleeping Service."""
    app = await play.sleeping_app()
    probe = await play.load(app, rate=0)
    async with play.stage.ground.api_away():
        await probe.rate(play.length.rate)
        await play.flow(play.length.outage)
    await play.stage.ground.settled()
    await play.awake(app)
    await play.flow_out()


async def etcd_restarted(play: Play) -> None:
    """The API server's storage is killed and started again, under load and while the target wakes."""
    app = await play.sleeping_app()
    await play.load(app)
    await play.observer.until_true(lambda: not play.at_zero(app), f"{app.name} is scaled up")
    await play.stage.ground.restart_etcd()
    await play.stage.ground.settled()
    await play.awake(app)
    await play.stage.ground.restart_etcd()
    await play.stage.ground.settled()
    await play.flow_out()


async def watches_dropped(play: Play) -> None:
    """Every watch connection breaks every two seconds, while targets sleep and wake."""
    app = await play.sleeping_app()
    probe = await play.load(app, rate=0)
    async with _dropping_watches(play):
        for _ in range(max(play.length.cycles // 4, 2)):
            await probe.rate(play.length.rate)
            await play.flow(play.length.load / 4)
            await play.awake(app)
            await probe.rate(0)
            await play.asleep(app)


async def late_endpoints(play: Play) -> None:
    """The service proxy hears of every change of endpoints three seconds late."""
    app = await play.sleeping_app()
    probe = await play.load(app, rate=0)
    await play.stage.ground.delay_endpoints(LATE)
    try:
        for _ in range(max(play.length.cycles // 4, 2)):
            await probe.rate(play.length.rate)
            await play.flow(play.length.load / 4)
            await play.awake(app)
            await play.flow(LATE)
            await probe.rate(0)
            await play.asleep(app)
    finally:
        await play.stage.ground.delay_endpoints(0)


@contextlib.asynccontextmanager
async def _dropping_watches(play: Play) -> AsyncIterator[None]:
    async def drop() -> None:
        while True:
            await play.stage.ground.drop_watches()
            await asyncio.sleep(_DROP_EVERY)

    task = asyncio.create_task(drop())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
