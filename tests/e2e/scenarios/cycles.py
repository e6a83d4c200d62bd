"""Going to sleep and waking up, again and again, and at the worst moments."""

from __future__ import annotations

import asyncio

from tests.e2e.play import NODE_LAG, Play
from tests.e2e.probing import Probe
from tests.e2e.scenarios.hands import EXITS
from tests.e2e.workload import ALWAYS_IDLE, App

# Around the end of the engage settle, when the target is set to zero.
_EARLIEST, _LATEST = -0.4, 0.6
_BURST = 1.5
# We hear of a scale a moment after it was written.
_WATCH_LAG = 0.5


async def wake(play: Play) -> None:
    """Traffic reaches a sleeping Service, and goes on until its pod has it."""
    app = await play.sleeping_app()
    await play.load(app)
    await play.awake(app)
    await play.flow_out()


async def cycle(play: Play) -> None:
    """Asleep, traffic, a pod, direct traffic, nobody, asleep again."""
    app = await play.sleeping_app()
    probe = await play.load(app)
    await play.awake(app)
    await play.flow(play.length.load / 4)
    await probe.rate(0)
    await play.asleep(app)


async def sleep_at_the_last_moment(play: Play) -> None:
    """Bursts begin at moments spread around the one at which the target is parked."""
    await _last_moments(play, play.new_app())


async def sleep_at_the_last_moment_and_exit_at_once(play: Play) -> None:
    """The same, with an app that does not serve on after SIGTERM."""
    await _last_moments(play, play.new_app(linger=0))


async def _last_moments(play: Play, app: App) -> None:
    app = await play.serving_app(app)
    probe = await play.load(app, rate=0)
    assert play.stage.installed is not None
    settle = play.stage.installed.engage_settle
    count, parked = play.length.moments, 0
    for turn in range(count):
        await play.observer.until("state", app.name, "Engaging")
        engaged = play.observer.last("state", app.name, "Engaging")
        offset = _EARLIEST + (_LATEST - _EARLIEST) * turn / max(count - 1, 1)
        await asyncio.sleep(settle + offset)
        await _burst(play, app, probe)
        zero = play.observer.last("replicas", app.name, "0")
        if zero > engaged:
            parked += 1
            if not app.linger:
                await play.until_only_one_pod(app)
                play.count_apart(zero - _WATCH_LAG, EXITS, until=play.left(app))
    play.notes.append(f"{parked} of {count} bursts came too late to keep the pod")


async def idle_by_its_metric(play: Play) -> None:
    """Traffic flows all the time, though the trigger says that there is none."""
    app = await play.sleeping_app(play.new_app(trigger=ALWAYS_IDLE, cooldown=1))
    await play.load(app)
    await play.flow_out()
    attempts = sum(event.what == "Engaging" for event in play.observer.events)
    play.notes.append(f"the operator tried {attempts} times to put it to sleep")
    assert attempts, "it was never tried to put to sleep, so nothing was shown"


async def cycles(play: Play) -> None:
    """Asleep, a burst, awake, idle, asleep: many times in a row."""
    await _cycles(play, play.new_app())


async def cycles_of_an_app_that_exits_at_once(play: Play) -> None:
    """The same, with an app that does not serve on after SIGTERM."""
    await _cycles(play, play.new_app(linger=0))


async def _cycles(play: Play, app: App) -> None:
    app = await play.sleeping_app(app)
    probe = await play.load(app, rate=0)
    for _ in range(play.length.cycles):
        await _burst(play, app, probe)
        await play.asleep(app)
        if not app.linger:
            # Nodes may still know the pod that is dead; whoever comes later is not excused.
            await play.flow(NODE_LAG)


async def _burst(play: Play, app: App, probe: Probe) -> None:
    """Send for a while, and until the traffic goes to the pods."""
    await probe.rate(play.length.rate)
    await play.flow(_BURST)
    await play.awake(app)
    await probe.rate(0)
