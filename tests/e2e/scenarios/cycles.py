"""Going to sleep and waking up, again and again, and at the worst moments."""

from __future__ import annotations

import asyncio
import time

from tests.e2e.probing import Probe
from tests.e2e.scenarios.hands import EXITS
from tests.e2e.trial import NODE_LAG, Trial
from tests.e2e.workload import ALWAYS_IDLE, App

# Around the end of the engage settle, when the target is set to zero.
_EARLIEST, _LATEST = -0.4, 0.6
_BURST = 1.5
# We hear of a scale a moment after it was written.
_WATCH_LAG = 0.5


async def wake(trial: Trial) -> None:
    """Traffic reaches a sleeping Service, and goes on until its pod has it."""
    app = await trial.sleeping_app()
    await trial.load(app)
    await trial.awake(app)
    await trial.flow_out()


async def cycle(trial: Trial) -> None:
    """Asleep, traffic, a pod, direct traffic, idle, asleep again."""
    app = await trial.sleeping_app()
    probe = await trial.load(app)
    await trial.awake(app)
    await trial.flow(trial.length.load / 4)
    await probe.rate(0)
    await trial.asleep(app)


async def sleep_at_the_last_moment(trial: Trial) -> None:
    """Bursts begin at moments spread around the one at which the target is parked."""
    await _last_moments(trial, trial.new_app())


async def sleep_at_the_last_moment_and_exit_at_once(trial: Trial) -> None:
    """The same, with an app that does not serve on after SIGTERM."""
    await _last_moments(trial, trial.new_app(linger=0))


async def new_connections_at_the_last_moment_of_drained_pods(trial: Trial) -> None:
    """New connections around the park of an app that ends at SIGTERM, its pods out of rotation first."""
    await _last_moments(trial, trial.new_app(linger=0, drain="Selector"), reuse=False)


async def _last_moments(trial: Trial, app: App, *, reuse: bool = True) -> None:
    app = await trial.serving_app(app)
    probe = await trial.load(app, rate=0, reuse=reuse)
    assert trial.environment.installed is not None
    settle = trial.environment.installed.engage_settle * (1 if app.drain == "None" else 2)
    excused = not app.linger and app.drain == "None"
    count, parked = trial.length.moments, 0
    for turn in range(count):
        await trial.observer.until("slice", app.name, "published")
        began = trial.observer.last("slice", app.name, "published")
        offset = _EARLIEST + (_LATEST - _EARLIEST) * turn / max(count - 1, 1)
        if turn == count - 1 or (not reuse and turn % 3):
            # Most losses are in the first hundredths of a second after the write. And whatever the
            # machine's pace, one burst meets a target that was just parked.
            await trial.observer.until("replicas", app.name, "0")
        else:
            await asyncio.sleep(settle + offset)
        if reuse:
            await burst(trial, app, probe)
        else:
            await _short_burst(trial, app, probe)
        zero = trial.observer.last("replicas", app.name, "0")
        if zero > began:
            parked += 1
            if excused:
                await trial.observer.until_true(
                    lambda: len(trial.pods(app)) <= 1, "one pod is gone"
                )
                trial.count_apart(zero - _WATCH_LAG, EXITS, until=trial.left(app))
    trial.notes.append(f"{parked} of {count} bursts came too late to keep the pod")
    assert parked, "no burst met the target being parked, so nothing was shown"


async def _short_burst(trial: Trial, app: App, probe: Probe) -> None:
    """Send for a while, and wait until the app is on its way to sleep again, or asleep."""
    await probe.rate(trial.length.rate)
    await trial.flow(_BURST)
    await probe.rate(0)
    ended = time.monotonic()

    def is_over() -> bool:
        # Without traffic Serve may be too short for a status, or not be reached at all.
        states = ("Serve", "Engaging", "Proxy")
        return any(trial.observer.last("state", app.name, state) > ended for state in states)

    await trial.observer.until_true(is_over, f"{app.name} was awake")


async def idle_by_its_metric(trial: Trial) -> None:
    """Traffic flows all the time, though the trigger reports no use."""
    app = await trial.sleeping_app(trial.new_app(trigger=ALWAYS_IDLE, cooldown=1))
    await trial.load(app)
    await trial.flow_out()
    # The first slice is of the sleep before.
    attempts = sum(event.what == "published" for event in trial.observer.events) - 1
    trial.notes.append(f"the operator tried {attempts} times to put it to sleep")
    assert attempts > 0, "it was never tried to put to sleep, so nothing was shown"


async def cycles(trial: Trial) -> None:
    """Asleep, a burst, awake, idle, asleep: many times in a row."""
    await _cycles(trial, trial.new_app())


async def cycles_of_an_app_that_exits_at_once(trial: Trial) -> None:
    """The same, with an app that does not serve on after SIGTERM."""
    await _cycles(trial, trial.new_app(linger=0))


async def _cycles(trial: Trial, app: App) -> None:
    app = await trial.sleeping_app(app)
    probe = await trial.load(app, rate=0)
    for _ in range(trial.length.cycles):
        await burst(trial, app, probe)
        await trial.asleep(app)
        if not app.linger:
            # Nodes may still know the pod that is dead; whoever comes later is not excused.
            await trial.flow(NODE_LAG)


async def burst(trial: Trial, app: App, probe: Probe) -> None:
    """Send for a while, and until the traffic goes to the pods."""
    await probe.rate(trial.length.rate)
    await trial.flow(_BURST)
    await trial.awake(app)
    await probe.rate(0)
