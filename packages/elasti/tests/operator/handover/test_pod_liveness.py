"""Endpoints that are listed as ready and are not: what a controller that is behind leaves in a slice."""

from __future__ import annotations

import asyncio

import pytest
from tests.operator.rig import SLICES, Rig
from tests.operator.servers import everywhere_fast

from kubeloop.objects.meta import JsonObject

pytestmark = [everywhere_fast, pytest.mark.timeout(180)]


def listed(pod: JsonObject) -> JsonObject:
    """A slice that says that a pod is ready, whatever became of it."""
    reference = {
        "kind": "Pod",
        "namespace": pod["metadata"]["namespace"],
        "name": pod["metadata"]["name"],
        "uid": pod["metadata"]["uid"],
    }
    endpoint = {
        "addresses": ["10.99.0.1"],
        "conditions": {"ready": True, "serving": True, "terminating": False},
        "targetRef": reference,
    }
    labels = {"kubernetes.io/service-name": "web", "endpointslice.kubernetes.io/managed-by": "late"}
    return {
        "metadata": {"name": "left-over", "labels": labels},
        "addressType": "IPv4",
        "endpoints": [endpoint],
        "ports": [{"name": "http", "port": 8080}],
    }


async def test_the_resolver_stays_while_only_dead_pods_are_listed_as_ready(rig: Rig):
    rig.cluster.kubelet.may_be_ready = lambda pod: False
    await rig.web(replicas=0)
    gone = {"metadata": {"namespace": rig.namespace, "name": "web-gone", "uid": "1-2-3"}}
    await rig.client.resource(SLICES, namespace=rig.namespace).create(listed(gone))
    async with rig.operator() as operator:
        await rig.becomes("Proxy")
        await rig.wake(operator, "web")
        await rig.becomes("Waking")
        await asyncio.sleep(3 * rig.settings.release_settle)
        assert await rig.state() == "Waking"
        assert await rig.addresses() == [rig.resolver.shown]
        rig.cluster.kubelet.may_be_ready = lambda pod: True
        rig.cluster.kubelet.look_again()
        await rig.becomes("Serve")


async def test_a_pod_that_is_not_ready_itself_is_not_trusted_for_being_listed(rig: Rig):
    rig.cluster.kubelet.may_be_ready = lambda pod: False
    await rig.web(replicas=1)
    async with rig.operator():
        await rig.becomes("Waking")
        (pod,) = await rig.cluster.list("pods")
        await rig.client.resource(SLICES, namespace=rig.namespace).create(listed(pod))
        await asyncio.sleep(3 * rig.settings.release_settle)
        assert await rig.state() == "Waking"
        rig.cluster.kubelet.may_be_ready = lambda pod: True
        rig.cluster.kubelet.look_again()
        await rig.becomes("Serve")
