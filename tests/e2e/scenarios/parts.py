"""Apps of several parts: a database, apps that exit without it, and a worker without a Service.

An app asks its database as it starts, waits for three seconds, and exits. The database takes longer than that: an app that
starts before its database is restarted.
"""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import sys
import time
from collections.abc import Sequence

from kubeloop.objects.meta import JsonObject
from tests.e2e.testbed import PATIENCE
from tests.e2e.trial import Trial
from tests.e2e.workload import App

PATIENT = 3
"""Seconds that an app waits for its database."""
DATABASE_STARTS = 8
COOLDOWN = 5
RESTS: JsonObject = {"triggers": [], "cooldownPeriod": COOLDOWN}
"""The spec of an ElastiService that sleeps after its last dependent."""
_WORKERS = 2
APPS = 40
_WOKEN = 10
"""As many as two cores start before the first of them gives up its database; all forty would be restarted for that."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Database:
    """What apps need: a workload that sleeps, with its Service and ElastiService."""

    name: str
    ask: str
    """A shell's command, which fails if there is no answer in time."""
    app: str = f"exec {sys.executable} -m tests.e2e.app"
    """What an app runs when it got one."""


def needing(app: App, database: Database, **spec: object) -> list[JsonObject]:
    """Return the objects of an app that exits without the database; `spec` is of its ElastiService."""
    workload, service, elasti_service = app.objects()
    (container,) = workload["spec"]["template"]["spec"]["containers"]
    container["command"] = ["sh", "-c", f"{database.ask} || exit 1; {database.app}"]
    elasti_service["spec"] |= spec
    return [workload, service, elasti_service]


def on(database: Database) -> JsonObject:
    """Return what makes an app depend on it."""
    return {"dependsOn": [{"name": database.name}]}


async def one_app(trial: Trial) -> None:
    """A request wakes a database, an app that exits without it, and a worker; nothing is restarted."""
    await woken_together(trial, trial.new_app(), await _database(trial))


async def ten_of_forty_apps(trial: Trial) -> None:
    """Ten of forty apps on one database are woken at once; the database sleeps after the last of them."""
    names = [f"app-{number:02}" for number in range(APPS)]
    await share(trial, [trial.new_app(name) for name in names], await _database(trial))


async def _database(trial: Trial) -> Database:
    made = trial.new_app("database", replicas=0, start=DATABASE_STARTS)
    *others, elasti_service = made.objects()
    elasti_service["spec"] |= RESTS
    await trial.environment.apply(*others, elasti_service)
    host, port = await trial.environment.address(trial.namespace, made.name)
    asking = f"urlopen('http://{host}:{port}/healthz', timeout={PATIENT})"
    ask = f'{sys.executable} -c "from urllib.request import urlopen; {asking}"'
    return Database(name=made.name, ask=ask)


async def woken_together(trial: Trial, app: App, database: Database) -> None:
    """Wake an app first as one that depends on nothing, and then with its database and a worker."""
    app = app.but(replicas=0)
    await trial.environment.apply(*needing(app, database))
    await asleep(trial, app.name, database.name)
    serial, restarts = await _woken(trial, app)
    assert restarts, "alone, the app starts before its database, and exits"
    await trial.asleep(app)
    worker = _worker(app)
    target = {key: worker[key] for key in ("apiVersion", "kind")} | {"name": "worker"}
    joined = needing(app, database, **on(database), targets=[target])
    # Its replicas are the operator's by now.
    await trial.environment.apply(worker, joined[-1])
    await asleep(trial, app.name, database.name)
    await trial.observer.until("replicas", "worker", "0")
    together, restarts_together = await _woken(trial, app)
    trial.notes.append(
        f"the first answer after {together:.1f} s with dependsOn, {restarts_together} restarts; without it"
        f" after {serial:.1f} s, {restarts} restarts"
    )
    assert restarts_together == 0
    await trial.observer.until("replicas", "worker", str(_WORKERS))
    began = time.monotonic()
    await asleep(trial, app.name, database.name)
    await trial.observer.until("replicas", "worker", "0")
    slept = [trial.observer.last("replicas", name, "0") for name in (app.name, database.name)]
    assert began - COOLDOWN < slept[0] < slept[1], "the database sleeps last"


async def share(trial: Trial, apps: Sequence[App], database: Database) -> None:
    """Wake some of many apps at once, and let all of them sleep but one; and then that one."""
    apps = [app.but(replicas=0, look_every=5) for app in apps]
    objects = [needing(app, database, **on(database)) for app in apps]
    await asyncio.gather(*(trial.environment.apply(*one) for one in objects))
    await asleep(trial, database.name, *(app.name for app in apps))
    await trial.reachable(*apps)
    woken, last = apps[:_WOKEN], apps[0]
    began = time.monotonic()
    probe = await trial.load(*woken)
    staying = await trial.load(last, rate=5)
    for app in woken:
        await trial.awake(app)
    trial.notes.append(
        f"{len(woken)} of {len(apps)} apps and their database awake after {time.monotonic() - began:.1f} s"
    )
    assert [await _restarts(trial, app) for app in woken] == [0] * len(woken)
    assert all(map(trial.at_zero, apps[_WOKEN:])), "nothing else wakes"
    await probe.rate(0)
    for app in woken[1:]:
        await trial.asleep(app)
    await trial.flow(3 * COOLDOWN)
    assert trial.observer.last("replicas", database.name, "0") < began, "one is still awake"
    await staying.rate(0)
    await asleep(trial, last.name, database.name)
    assert trial.observer.last("replicas", database.name, "0") > began


async def asleep(trial: Trial, *names: str) -> None:
    """Wait until all of these sleep."""
    for name in names:
        await trial.asleep(trial.new_app(name))


async def _woken(trial: Trial, app: App) -> tuple[float, int]:
    """Load a sleeping app until it is awake; how long its first client waited, and how often it was restarted."""
    await trial.reachable(app)
    probe = await trial.load(app)
    await trial.awake(app, seconds=PATIENCE)
    restarts = await _restarts(trial, app)
    await trial.flow(trial.length.load / 4)
    _, records = await probe.finish()
    first = min(records, key=lambda record: record.sent)
    return first.answered - first.sent, restarts


async def _restarts(trial: Trial, app: App) -> int:
    pods = await trial.environment.pods(trial.namespace, f"app={app.name}")
    return sum(one["restartCount"] for pod in pods for one in pod["status"]["containerStatuses"])


def _worker(app: App) -> JsonObject:
    """Return a Deployment without a Service, of the app's image."""
    workload = copy.deepcopy(app.workload())
    workload["metadata"]["name"], labels = "worker", {"app": "worker"}
    template = workload["spec"]["template"]
    workload["spec"] |= {"replicas": _WORKERS, "selector": {"matchLabels": labels}}
    template["metadata"]["labels"] = labels
    template["spec"]["terminationGracePeriodSeconds"] = 1
    (container,) = template["spec"]["containers"]
    del container["readinessProbe"]
    container["command"] = ["sleep", "100000"]
    return workload
