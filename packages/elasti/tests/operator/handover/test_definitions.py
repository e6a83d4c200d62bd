"""ElastiServices that another definition let pass: an older one, a newer one. On both servers."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.controllers.support import eventually
from tests.operator.rig import FakePrometheus, Rig
from tests.operator.servers import everywhere_fast

from kubeloop.objects.meta import JsonObject
from kubeloop.objects.patches import MergePatch

pytestmark = [everywhere_fast, pytest.mark.timeout(180)]

NAME = "elastiservices.elasti.truefoundry.com"


@contextlib.asynccontextmanager
async def defined_as(rig: Rig, change: Any) -> AsyncIterator[None]:
    """Serve another definition during the block."""
    crds = rig.client.resource("apiextensions.k8s.io/v1/customresourcedefinitions")
    whole = await crds.get(NAME)
    other: JsonObject = json.loads(json.dumps(whole))
    for version in other["spec"]["versions"]:
        change(version["schema"]["openAPIV3Schema"]["properties"])
    await crds.replace(other)
    try:
        yield
    finally:
        fresh = await crds.get(NAME)
        await crds.replace({**fresh, "spec": whole["spec"]})


def _older(parts: JsonObject) -> None:
    for field in ("wake", "deletionPolicy", "probeResponse"):
        del parts["spec"]["properties"][field]
    for field in ("state", "replicas"):
        del parts["status"]["properties"][field]


def _anything(parts: JsonObject) -> None:
    parts["spec"] = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}


async def test_an_older_definition_is_reported_with_the_command_to_run(rig: Rig):
    """KubeElasti's drops our fields; whoever migrates must know."""
    async with defined_as(rig, _older):
        await rig.web(replicas=0)
        async with rig.operator():
            told = await rig.tells("Ready", "Valid")
            assert "drops spec.deletionPolicy, spec.probeResponse, spec.wake" in told["message"]
            assert "elasti crd | kubectl apply" in told["message"]
            await eventually(rig.addresses)


async def test_an_object_that_cannot_be_read_stops_no_other_and_has_a_condition(
    rig: Rig, prometheus: FakePrometheus
):
    """Such as a newer definition allows, or one that was stored before ours was there."""
    good = prometheus.trigger()
    async with defined_as(rig, _anything):
        await _when_anything_goes(rig)
        await rig.web(name="pigeon", triggers=[{"type": "carrier-pigeon"}])
        await rig.web(replicas=0, name="asleep", minTargetReplicas=0, triggers=[good])
        await rig.web(name="nameless", service="", scaleTargetRef={"kind": "Deployment"})
        await rig.web(triggers=[good])
        async with rig.operator() as operator:
            told = await rig.tells("Ready", "InvalidSpec", "pigeon")
            assert "spec.triggers[0].type: unknown trigger 'carrier-pigeon'" in told["message"]
            told = await rig.tells("Ready", "InvalidSpec", "asleep")
            assert "spec.minTargetReplicas: Expected `int` >= 1" in told["message"]
            await rig.tells("Ready", "InvalidSpec", "nameless")
            await rig.becomes("Proxy")
            # Nobody sleeps by a spec that cannot be read, and whoever asks for one wakes it.
            assert (await rig.wake(operator, "asleep"))[0] == 202
            await rig.becomes("Serve", "asleep")
            assert await rig.replicas("pigeon") == 1
            # Mended, it is like any other, without a restart.
            mended = {"spec": {"triggers": [good]}}
            await rig.elastiservices.patch("pigeon", MergePatch(mended))
            await rig.becomes("Proxy", "pigeon")


async def _when_anything_goes(rig: Rig) -> None:
    """Wait until the server takes what the definition lets pass."""

    async def taken() -> bool:
        body: JsonObject = {
            "apiVersion": "elasti.truefoundry.com/v1alpha1",
            "kind": "ElastiService",
            "metadata": {"name": "trial"},
            "spec": {"triggers": 5},
        }
        try:
            await rig.elastiservices.create(body)
        except Exception:
            return False
        await rig.elastiservices.delete("trial")
        return True

    await eventually(taken)
