"""Dozes on Kubernetes' own server: what it takes, what it refuses, and with which rights.

No kubelet confirms a size here; `tests/realcluster` has real ones.
"""

from __future__ import annotations

from typing import Any

import pytest
from tests.controllers.support import deployment, eventually
from tests.operator.rig import FakePrometheus, Rig
from tests.operator.servers import CONTROLPLANE, allow

from elasti.operator.rbac import DOZE_RULES
from kubeloop.client import Forbidden, Invalid
from kubeloop.objects.patches import JsonPatch

pytestmark = [
    pytest.mark.controlplane,
    pytest.mark.timeout(180),
    pytest.mark.parametrize("rig", [CONTROLPLANE], indirect=True),
]


async def dozing(rig: Rig, prometheus: FakePrometheus, resources: Any, **sleep: Any) -> None:
    made = deployment("web", 2)
    (container,) = made["spec"]["template"]["spec"]["containers"]
    container["resources"] = resources
    await allow(rig.client, "doze", [rule.to_json() for rule in DOZE_RULES])
    await rig.cluster.deployments.create(made)
    await rig.service()
    trigger = prometheus.trigger()
    await rig.elastiservice(triggers=[trigger], sleep={"mode": "Doze", **sleep})


async def requests(rig: Rig) -> set[str]:
    pods = rig.client.resource("v1/pods", namespace=rig.namespace).items(selector="app=web")
    return {
        pod["spec"]["containers"][0]["resources"]["requests"]["cpu"]
        async for pod in pods
        if "deletionTimestamp" not in pod["metadata"]
    }


async def shows(rig: Rig, cpu: str) -> None:
    async def is_so() -> bool:
        return await requests(rig) == {cpu}

    await eventually(is_so, timeout=60)


async def test_requests_shrink_and_grow_back_and_the_pods_stay(
    rig: Rig, prometheus: FakePrometheus
):
    await dozing(rig, prometheus, {"requests": {"cpu": "100m", "memory": "16Mi"}})
    pods = rig.client.resource("v1/pods", namespace=rig.namespace)
    async with rig.operator(doze=True):
        await shows(rig, "1m")
        there = {pod["metadata"]["uid"] async for pod in pods.items(selector="app=web")}
        assert (await rig.status())["doze"]["containers"][0]["cpu"] == "100m"
        prometheus.value = 9.0
        await shows(rig, "100m")
        assert {pod["metadata"]["uid"] async for pod in pods.items(selector="app=web")} == there


async def test_a_guaranteed_pod_is_refused_by_us_as_by_the_server(
    rig: Rig, prometheus: FakePrometheus
):
    same = {"cpu": "100m", "memory": "16Mi"}
    await dozing(rig, prometheus, {"requests": same, "limits": same})
    async with rig.operator(doze=True):
        found = await rig.tells("Ready", "DozeGuaranteed")
        assert "raise its limits" in found["message"]
    pods = rig.client.resource("v1/pods", namespace=rig.namespace)
    name, _ = [pod["metadata"]["name"] async for pod in pods.items(selector="app=web")]
    path = "/spec/containers/0/resources/requests/cpu"
    with pytest.raises(Invalid):
        await pods.subresource("resize").patch(
            name, JsonPatch([{"op": "replace", "path": path, "value": "1m"}])
        )


async def test_a_limit_range_decides_how_small_it_gets(rig: Rig, prometheus: FakePrometheus):
    limits = [{"type": "Container", "min": {"cpu": "20m"}}]
    ranges = rig.client.resource("v1/limitranges", namespace=rig.namespace)
    await ranges.create({"metadata": {"name": "least"}, "spec": {"limits": limits}})
    await dozing(rig, prometheus, {"requests": {"cpu": "100m", "memory": "16Mi"}})
    async with rig.operator(doze=True):
        await shows(rig, "20m")


async def test_without_the_right_nothing_dozes_and_the_message_says_how_to_get_it(
    rig: Rig, prometheus: FakePrometheus
):
    await dozing(rig, prometheus, {"requests": {"cpu": "100m", "memory": "16Mi"}})
    async with rig.operator():
        found = await rig.tells("Ready", "DozeNotEnabled")
        assert "elasti install --doze" in found["message"]
    assert await requests(rig) == {"100m"}


@pytest.mark.parametrize(
    ("sleep", "words"),
    [
        ({"mode": "Doze", "doze": {"cpu": "0"}}, "write at least 1m"),
        ({"mode": "Doze", "doze": {"cpu": "few"}}, "write CPU as a quantity"),
        ({"mode": "Doze", "doze": {"zeroAfter": "1h"}}, "needs mode: DozeThenZero"),
        ({"mode": "Zero", "doze": {"memory": "Usage"}}, "doze needs mode: Doze"),
    ],
)
async def test_the_definition_refuses(rig: Rig, sleep: Any, words: str):
    with pytest.raises((Invalid, Forbidden), match=words):
        await rig.elastiservice(sleep=sleep)
