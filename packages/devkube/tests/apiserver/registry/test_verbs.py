"""What conformance does not ask: media types, endless bodies, grace that only shrinks."""

from __future__ import annotations

from tests.apiserver.harness import CONFIG_MAPS, pod

PODS = "/api/v1/namespaces/default/pods"


async def test_unknown_media_types_are_refused(kube):
    assert (await kube.send("POST", CONFIG_MAPS, b"x", kind="text/csv")).code == 415
    assert (await kube.send("GET", CONFIG_MAPS, accept="text/csv")).code == 406


async def test_a_body_may_not_be_endless(kube):
    reply = await kube.create(CONFIG_MAPS, b" " * (4 * 1024 * 1024))
    assert (reply.code, reply["reason"]) == (413, "RequestEntityTooLarge")


async def test_a_running_pod_goes_gracefully_and_grace_only_shrinks(kube):
    await kube.create(PODS, pod("a", nodeName="n", terminationGracePeriodSeconds=20))
    going = await kube.delete(f"{PODS}/a")
    assert going["metadata"]["deletionGracePeriodSeconds"] == 20
    longer = await kube.delete(f"{PODS}/a", gracePeriodSeconds="60")
    assert longer["metadata"]["deletionGracePeriodSeconds"] == 20
    shorter = await kube.delete(f"{PODS}/a", {"gracePeriodSeconds": 5})
    assert shorter["metadata"]["deletionGracePeriodSeconds"] == 5
    assert (await kube.get(f"{PODS}/a")).code == 200
    await kube.delete(f"{PODS}/a", gracePeriodSeconds="0")
    assert (await kube.get(f"{PODS}/a")).code == 404
