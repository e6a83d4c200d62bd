"""Deletion: grace, finalizers, propagation, preconditions, collections."""

from __future__ import annotations

from tests.apiserver.harness import CONFIG_MAPS, DEPLOYMENTS, config_map, deployment, pod

PODS = "/api/v1/namespaces/default/pods"


async def test_a_deletion_answers_with_a_status_and_the_uid(kube):
    made = await kube.create(DEPLOYMENTS, deployment())
    reply = await kube.delete(f"{DEPLOYMENTS}/web")
    assert reply["status"] == "Success"
    assert reply["details"] == {
        "name": "web",
        "group": "apps",
        "kind": "deployments",
        "uid": made["metadata"]["uid"],
    }
    assert (await kube.delete(f"{DEPLOYMENTS}/web")).code == 404


async def test_finalizers_hold_an_object_until_they_are_gone(kube):
    body = config_map("a")
    body["metadata"]["finalizers"] = ["example.com/hold"]
    await kube.create(CONFIG_MAPS, body)
    going = await kube.delete(f"{CONFIG_MAPS}/a")
    assert going["metadata"]["deletionTimestamp"]
    refused = await kube.merge(
        f"{CONFIG_MAPS}/a", {"metadata": {"finalizers": ["example.com/hold", "example.com/new"]}}
    )
    assert (refused.code, refused["details"]["causes"][0]["field"]) == (422, "metadata.finalizers")
    assert (await kube.merge(f"{CONFIG_MAPS}/a", {"metadata": {"finalizers": None}})).code == 200
    assert (await kube.get(f"{CONFIG_MAPS}/a")).code == 404


async def test_propagation_becomes_a_finalizer(kube):
    for name, policy, finalizer in (
        ("fore", "Foreground", "foregroundDeletion"),
        ("orphan", "Orphan", "orphan"),
    ):
        await kube.create(DEPLOYMENTS, deployment(name))
        reply = await kube.delete(f"{DEPLOYMENTS}/{name}", propagationPolicy=policy)
        assert reply["metadata"]["finalizers"] == [finalizer]
        assert reply["metadata"]["generation"] == 2
    await kube.create(DEPLOYMENTS, deployment("back"))
    assert (await kube.delete(f"{DEPLOYMENTS}/back", propagationPolicy="Background"))[
        "status"
    ] == "Success"
    assert (await kube.delete(f"{DEPLOYMENTS}/fore", propagationPolicy="Sideways")).code == 422


async def test_preconditions_must_hold(kube):
    made = await kube.create(CONFIG_MAPS, config_map("a"))
    for conditions in ({"uid": "x"}, {"resourceVersion": "1"}):
        reply = await kube.delete(f"{CONFIG_MAPS}/a", {"preconditions": conditions})
        assert (reply.code, reply["reason"]) == (409, "Conflict")
    right = {"uid": made["metadata"]["uid"], "resourceVersion": made["metadata"]["resourceVersion"]}
    assert (await kube.delete(f"{CONFIG_MAPS}/a", {"preconditions": right})).code == 200


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


async def test_a_pod_that_runs_nowhere_goes_at_once(kube):
    await kube.create(PODS, pod("a"))
    await kube.delete(f"{PODS}/a")
    assert (await kube.get(f"{PODS}/a")).code == 404


async def test_a_collection_is_deleted_by_selector(kube):
    for name, color in (("a", "red"), ("b", "blue"), ("c", "red")):
        await kube.create(CONFIG_MAPS, config_map(name, {"color": color}))
    reply = await kube.delete(CONFIG_MAPS, labelSelector="color=red")
    assert [item["metadata"]["name"] for item in reply["items"]] == ["a", "c"]
    left = await kube.get(CONFIG_MAPS)
    assert [item["metadata"]["name"] for item in left["items"]] == ["b"]


async def test_a_namespace_terminates_until_it_is_finalized(kube):
    await kube.create("/api/v1/namespaces", {"metadata": {"name": "gone"}})
    going = await kube.delete("/api/v1/namespaces/gone")
    assert going["status"]["phase"] == "Terminating"
    refused = await kube.create("/api/v1/namespaces/gone/configmaps", config_map("a"))
    assert (refused.code, refused["details"]["causes"][0]["reason"]) == (
        403,
        "NamespaceTerminating",
    )
    finalized = await kube.update(
        "/api/v1/namespaces/gone/finalize", {"metadata": {"name": "gone"}, "spec": {}}
    )
    assert finalized.code == 200
    assert (await kube.get("/api/v1/namespaces/gone")).code == 404
    assert (await kube.delete("/api/v1/namespaces/default")).code == 403
