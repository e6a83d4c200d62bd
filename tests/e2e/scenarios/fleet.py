"""A fleet that is enrolled by a label: observed, put to sleep, woken and un-enrolled."""

from __future__ import annotations

import asyncio
import json
import sys

from elasti.api.names import API_VERSION, SLEEP_LABEL, TEMPLATE_ANNOTATION, TEMPLATE_KIND
from kubeloop.objects.meta import JsonObject
from kubeloop.objects.patches import MergePatch
from tests.e2e.testbed import PATIENCE
from tests.e2e.trial import Trial
from tests.e2e.workload import App

_SERVICES = 30
# One every second for each of them keeps it awake: the cooldown is three.
_RATE = 1.0 * _SERVICES


async def enrolled(trial: Trial) -> None:
    """Thirty Services are observed by a label, reported, put to sleep, woken, and un-enrolled under load."""
    # Thirty apps on two cores: what is not the point takes less of them.
    apps = [trial.new_app(f"app-{number:02}", look_every=5) for number in range(_SERVICES)]
    objects = [(app.workload(), app.service()) for app in apps]
    await asyncio.gather(*(trial.environment.apply(*one) for one in objects))
    await _apply_template(trial, apps[0])
    await _label(trial, "observe")
    for app in apps:
        await trial.observer.until("state", app.name, "Serve", seconds=2 * PATIENCE)
    await trial.reachable(*apps)
    await trial.flow(3 * apps[0].cooldown)
    assert await _reported(trial) == {app.name for app in apps}
    replicas = {e.what for e in trial.observer.events if e.kind == "replicas"}
    assert replicas == {"1"}, "what is observed is not scaled"
    await _label(trial, "enforce")
    for app in apps:
        await trial.asleep(app)
    probe = await trial.load(*apps, rate=_RATE)
    for app in apps:
        await trial.awake(app, seconds=3 * PATIENCE)
    await _label(trial, None)
    for app in apps:
        await trial.observer.until("state", app.name, "none")
    await probe.rate(trial.length.rate)
    await trial.flow_out()
    assert not any(map(trial.at_zero, apps))
    services = trial.environment.client.resource("v1/services", namespace=trial.namespace)
    assert {one["metadata"]["name"] async for one in services.items()} == {a.name for a in apps}
    assert all(trial.observer.now.get(("slice", app.name)) != "published" for app in apps)


async def _apply_template(trial: Trial, app: App) -> None:
    spec = app.elasti_service()["spec"]
    template: JsonObject = {
        "apiVersion": API_VERSION,
        "kind": TEMPLATE_KIND,
        "metadata": {"name": trial.namespace},
        "spec": {key: spec[key] for key in ("cooldownPeriod", "triggers")},
    }

    async def applied() -> bool:
        # Its definition may be new.
        trial.environment.client.mapper.invalidate()
        await trial.environment.apply(template)
        return True

    await trial.environment.until(applied, "the template is applied")


async def _label(trial: Trial, sleep: str | None) -> None:
    """Label the namespace as a platform team does."""
    meta = {
        "labels": {SLEEP_LABEL: sleep},
        "annotations": {TEMPLATE_ANNOTATION: trial.namespace},
    }
    namespaces = trial.environment.client.resource("v1/namespaces")
    await namespaces.patch(trial.namespace, MergePatch({"metadata": meta}))


async def _reported(trial: Trial) -> set[str]:
    """Return the names that `elasti report --observe` has."""
    access = f"--kubeconfig={trial.environment.testbed.kubeconfig}"
    process = await asyncio.create_subprocess_exec(
        *[sys.executable, "-m", "elasti", "report", "--observe", "-o", "json"],
        *["-n", trial.namespace, access],
        stdout=asyncio.subprocess.PIPE,
    )
    words, _ = await process.communicate()
    assert process.returncode == 0
    return {entry["name"] for entry in json.loads(words)["services"]}
