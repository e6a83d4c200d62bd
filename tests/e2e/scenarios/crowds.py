"""Many at once: a hundred Services, ten thousand requests."""

from __future__ import annotations

import asyncio

from tests.e2e.environment import Address
from tests.e2e.probing import Probe
from tests.e2e.testbed import PATIENCE
from tests.e2e.trial import Trial
from tests.e2e.workload import App

_PROBERS = 4
_RUSH = 1_000.0
_A_RUSH_EACH = 3
# One every two seconds for each of them, until all are awake: the cooldown is three. Those that wait are held,
# and each takes two descriptors of the dev cluster.
_MEANWHILE = 50.0


async def hundred_services(trial: Trial) -> None:
    """A hundred sleeping Services are woken by requests that arrive within a moment."""
    names = [f"app-{n:03}" for n in range(trial.length.services)]
    # A hundred apps on two cores: what is not the point takes less of them.
    apps = [trial.new_app(name, replicas=0, look_every=5) for name in names]
    await asyncio.gather(*(trial.app(app) for app in apps))
    for app in apps:
        await trial.asleep(app)
    await trial.reachable(*apps)
    probe = await trial.load(*apps, rate=_RUSH)
    await trial.flow(_A_RUSH_EACH * len(apps) / _RUSH)
    await probe.rate(_MEANWHILE)
    for app in apps:
        await trial.awake(app, seconds=3 * PATIENCE)
    await probe.rate(trial.length.rate)
    await trial.flow_out()


async def thousands_held(trial: Trial) -> None:
    """Thousands of requests wait at one Service at once, and all of them are answered."""
    # The app starts when everybody is there, so that they really are held all at once.
    everybody = trial.directory / "everybody"
    app = await trial.sleeping_app(trial.new_app(start_when=everybody))
    probes = await _clients(trial, app)
    await asyncio.gather(*(probe.rate(_RUSH / _PROBERS * 2) for probe in probes))
    await asyncio.gather(*(probe.all_sent() for probe in probes))
    await trial.environment.holding(app.namespace, app.name, trial.length.held)
    everybody.touch()
    await trial.awake(app)
    accounts = [await probe.finish() for probe in probes]
    held = sum(record.held is not None for _, records in accounts for record in records)
    assert held == trial.length.held, f"only {held} were held at once"


async def _clients(trial: Trial, app: App) -> list[Probe]:
    """Start clients, each with its part; what the way to the Service cannot carry goes past it.

    A relay needs two descriptors for each connection; nodes that rewrite addresses need none, and
    their clients reach the resolver's own address, as those do that go past the relay here.
    """
    through = await trial.environment.address(app.namespace, app.name)
    past = await _resolver_endpoints(trial, app)
    each = trial.length.held // _PROBERS
    room = trial.environment.testbed.most_connections
    made = []
    for number in range(_PROBERS):
        fits = (number + 1) * each <= room
        made.append(await trial.probe(*([through] if fits else past), limit=each, reuse=False))
    if room < trial.length.held:
        trial.notes.append(f"{room // each * each} through the Service's address, the rest past it")
    return made


async def _resolver_endpoints(trial: Trial, app: App) -> list[Address]:
    piece = await trial.environment.slice(app.namespace, app.name)
    assert piece is not None
    port = piece["ports"][0]["port"]
    return [Address(endpoint["addresses"][0], port) for endpoint in piece["endpoints"]]
