"""What an observing operator writes, by the audit log of Kubernetes' own server."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from tests.controllers.support import eventually
from tests.operator.fakes import FakePrometheus
from tests.operator.rig import Rig
from tests.operator.servers import USER, real_rig

from elasti.api.names import SLEEP_ANNOTATION
from elasti.api.observed import policy_patch
from kubeloop.objects.patches import MergePatch
from tests.controlplane.binaries import Binaries
from tests.controlplane.rig import ControlPlane, Options

pytestmark = [pytest.mark.controlplane, pytest.mark.timeout(240)]

POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [
        # Reviews are created to ask, and change nothing.
        {
            "level": "None",
            "resources": [{"group": "authorization.k8s.io"}, {"group": "authentication.k8s.io"}],
        },
        {"level": "Metadata", "users": [USER], "verbs": ["create", "update", "patch", "delete"]},
        {"level": "None"},
    ],
}
OBSERVING = {"leases", "events", "elastiservices/status"}


def written(log: Path) -> set[str]:
    """Return what the operator wrote, or tried to write."""
    entries = [json.loads(line)["objectRef"] for line in log.read_text().splitlines()]
    return {"/".join(filter(None, (e["resource"], e.get("subresource")))) for e in entries}


async def observe(rig: Rig, prometheus: FakePrometheus, log: Path) -> None:
    await rig.web(2, triggers=[prometheus.trigger()], policy="Observe", suspend=True)
    async with rig.operator(leader_elect=True) as operator:

        async def idle() -> bool:
            triggers = (await rig.status()).get("triggers") or ()
            return "observed" in await rig.status() and not any("lastError" in t for t in triggers)

        await eventually(idle, timeout=60)
        asked = {"metadata": {"annotations": {SLEEP_ANNOTATION: "2030-01-01T00:00:00Z"}}}
        await rig.elastiservices.patch("web", MergePatch(asked))
        prometheus.value = 9.0
        await rig.wake(operator, "web")
        prometheus.value = 0.0
        # Many cooldowns and polls.
        await asyncio.sleep(8.0)
        assert await rig.replicas() == 2
        assert written(log) == OBSERVING
        # What it could have written is in this log, too.
        await rig.elastiservices.patch("web", MergePatch(policy_patch(observe=False)))
        await rig.becomes("Proxy")
    assert written(log) > {"endpointslices", "deployments/scale"} | OBSERVING


async def test_nothing_is_written_but_leases_events_and_status(
    controlplane_binaries: Binaries, prometheus: FakePrometheus, tmp_path: Path
):
    policy, log = tmp_path / "policy.json", tmp_path / "audit.log"
    policy.write_text(json.dumps(POLICY))
    flags = (f"--audit-policy-file={policy}", f"--audit-log-path={log}")
    with ControlPlane(controlplane_binaries, Options(apiserver_flags=flags)) as plane:
        async with real_rig(plane) as rig:
            await observe(rig, prometheus, log)
