"""Many at once: a hundred Services, ten thousand requests."""

from __future__ import annotations

import asyncio

from tests.e2e.ground import PATIENCE
from tests.e2e.play import Play
from tests.e2e.probing import Probe
from tests.e2e.stage import Address
from tests.e2e.workload import App

_PROBERS = 4
_RUSH = 1_000.0
_A_RUSH_EACH = 3
# One a second for each of them, until all are awake; less, and some would sleep again.
_MEANWHILE = 100.0


async def hundred_services(play: Play) -> None:
    """A hundred sleeping Services are woken by requests that arrive within a moment."""
    names = [f"app-{n:03}" for n in range(play.length.services)]
    # A hundred apps on two cores: what is not the point takes less of them.
    apps = [play.new_app(name, replicas=0, look_every=5) for name in names]
    await asyncio.gather(*(play.app(app) for app in apps))
    for app in apps:
        await play.asleep(app)
    await play.reachable(*apps)
    probe = await play.load(*apps, rate=_RUSH)
    await play.flow(_A_RUSH_EACH * len(apps) / _RUSH)
    await probe.rate(_MEANWHILE)
    for app in apps:
        await play.awake(app, seconds=3 * PATIENCE)
    await probe.rate(play.length.rate)
    await play.flow_out()


async def ten_thousand_held(play: Play) -> None:
    """Ten thousand requests wait at one Service, and all of them are answered."""
    # The app starts when everybody is there, so that they really are held all at once.
    everybody = play.directory / "everybody"
    app = await play.sleeping_app(play.new_app(start_when=everybody))
    probes = await _clients(play, app)
    await asyncio.gather(*(probe.rate(_RUSH / _PROBERS * 2) for probe in probes))
    await asyncio.gather(*(probe.all_sent() for probe in probes))
    await play.stage.holding(app.namespace, app.name, play.length.held)
    everybody.touch()
    await play.awake(app)
    accounts = [await probe.finish() for probe in probes]
    held = sum(record.held is not None for _, records in accounts for record in records)
    assert held == play.length.held, f"only {held} were held at once"


async def _clients(play: Play, app: App) -> list[Probe]:
    """Start clients, each with its part; what the way to the Service cannot carry goes past it.

    A relay needs two descriptors for each connection; nodes that rewrite addresses need none, and
    their clients reach the resolver's own address, as those do that go past the relay here.
    """
    through = await play.stage.address(app.namespace, app.name)
    past = await _resolver_endpoints(play, app)
    each = play.length.held // _PROBERS
    room = play.stage.ground.most_connections
    made = []
    for number in range(_PROBERS):
        fits = (number + 1) * each <= room
        made.append(await play.probe(*([through] if fits else past), limit=each, reuse=False))
    if room < play.length.held:
        play.notes.append(f"{room // each * each} through the Service's address, the rest past it")
    return made


async def _resolver_endpoints(play: Play, app: App) -> list[Address]:
    piece = await play.stage.slice(app.namespace, app.name)
    assert piece is not None
    port = piece["ports"][0]["port"]
    return [Address(endpoint["addresses"][0], port) for endpoint in piece["endpoints"]]
