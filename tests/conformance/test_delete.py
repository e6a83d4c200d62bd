"""Deleting objects: finalizers, grace, preconditions, collections."""

from __future__ import annotations

import pytest

from kubeloop.client import NotFound, Preconditions
from kubeloop.objects.patches import JsonPatch, MergePatch
from tests.conformance.behaviours import behaviour
from tests.conformance.kube import Kube, names, refused
from tests.conformance.manifests import config_map, deployment, pod

HOLD = "example.com/hold"


@behaviour("delete.status", "A delete answers with a Status that names what went")
async def test_a_delete_answers_with_a_status(kube: Kube) -> None:
    made = await kube.maps.create(config_map("a"))
    answer = await kube.send("DELETE", kube.path("v1/configmaps", "a"))
    assert answer.status == 200
    assert answer.json["status"] == "Success"
    assert answer.json["details"] == {
        "name": "a",
        "kind": "configmaps",
        "uid": made["metadata"]["uid"],
    }


@behaviour("delete.missing", "A delete of a missing object is 404")
async def test_a_delete_of_nothing_is_not_found(kube: Kube) -> None:
    await kube.maps.create(config_map("a"))
    await kube.maps.delete("a")
    with pytest.raises(NotFound, match='configmaps "a" not found'):
        await kube.maps.delete("a")


@behaviour("delete.finalizer", "An object with finalizers stays, marked, until they are gone")
async def test_finalizers_hold_an_object(kube: Kube) -> None:
    await kube.maps.create(config_map("a", finalizers=[HOLD]))
    left = await kube.maps.delete("a")
    assert left is not None
    assert left["metadata"]["deletionTimestamp"]
    assert left["metadata"]["deletionGracePeriodSeconds"] == 0
    assert left["metadata"]["finalizers"] == [HOLD]
    await kube.maps.patch("a", MergePatch({"metadata": {"finalizers": None}}))
    with pytest.raises(NotFound):
        await kube.maps.get("a")


@behaviour("delete.finalizer-again", "A second delete of a held object leaves its deletion time")
async def test_a_second_delete_changes_nothing(kube: Kube) -> None:
    await kube.maps.create(config_map("a", finalizers=[HOLD]))
    one = await kube.maps.delete("a")
    two = await kube.maps.delete("a")
    assert one is not None
    assert two is not None
    assert two["metadata"]["deletionTimestamp"] == one["metadata"]["deletionTimestamp"]


@behaviour(
    "delete.finalizer-added-late", "A deleted object takes no new finalizers, and loses old ones"
)
async def test_no_finalizer_comes_after_the_delete(kube: Kube) -> None:
    await kube.maps.create(config_map("a", finalizers=[HOLD, "example.com/b"]))
    await kube.maps.delete("a")
    add = JsonPatch([{"op": "add", "path": "/metadata/finalizers/-", "value": "example.com/new"}])
    error = await refused(kube.maps.patch("a", add), 422, "Invalid")
    assert "Forbidden: no new finalizers can be added if the object is being deleted" in str(error)
    left = await kube.maps.patch("a", MergePatch({"metadata": {"finalizers": [HOLD]}}))
    assert left["metadata"]["finalizers"] == [HOLD]


@behaviour("delete.terminating-update", "A deleted object can still be changed")
async def test_a_held_object_can_be_changed(kube: Kube) -> None:
    await kube.maps.create(config_map("a", finalizers=[HOLD]))
    await kube.maps.delete("a")
    changed = await kube.maps.patch("a", MergePatch({"data": {"x": "1"}}))
    assert changed["data"] == {"x": "1"}


@behaviour("delete.terminating-create", "While an object is held its name is taken")
async def test_a_held_name_is_taken(kube: Kube) -> None:
    await kube.maps.create(config_map("a", finalizers=[HOLD]))
    await kube.maps.delete("a")
    error = await refused(kube.maps.create(config_map("a")), 409, "AlreadyExists")
    assert str(error) == 'object is being deleted: configmaps "a" already exists'


@behaviour("delete.precondition-uid", "A delete with another uid is 409")
async def test_a_delete_may_name_the_uid(kube: Kube) -> None:
    made = await kube.maps.create(config_map("a"))
    other = kube.maps.delete("a", preconditions=Preconditions(uid="other"))
    error = await refused(other, 409, "Conflict")
    assert "the UID in the precondition (other) does not match the UID in record" in str(error)
    await kube.maps.delete("a", preconditions=Preconditions(uid=made["metadata"]["uid"]))


@behaviour("delete.precondition-version", "A delete with a stale resourceVersion is 409")
async def test_a_delete_may_name_the_version(kube: Kube) -> None:
    made = await kube.maps.create(config_map("a"))
    await kube.maps.patch("a", MergePatch({"data": {"x": "1"}}))
    stale = Preconditions(resource_version=made["metadata"]["resourceVersion"])
    error = await refused(kube.maps.delete("a", preconditions=stale), 409, "Conflict")
    assert "the ResourceVersion in the precondition" in str(error)


@behaviour("delete.dry-run", "A dry run of a delete leaves the object")
async def test_a_dry_run_deletes_nothing(kube: Kube) -> None:
    made = await kube.maps.create(config_map("a"))
    await kube.maps.delete("a", dry_run=True)
    assert await kube.maps.get("a") == made


@behaviour("delete.pod-grace", "A scheduled pod is marked and stays for its grace period")
async def test_a_scheduled_pod_stays_for_a_while(kube: Kube) -> None:
    await kube.pods.create(pod("p", nodeName="ghost", terminationGracePeriodSeconds=40))
    left = await kube.pods.delete("p")
    assert left is not None
    assert left["metadata"]["deletionGracePeriodSeconds"] == 40
    assert left["metadata"]["deletionTimestamp"] > left["metadata"]["creationTimestamp"]
    shorter = await kube.pods.delete("p", grace_period=7)
    assert shorter is not None
    assert shorter["metadata"]["deletionGracePeriodSeconds"] == 7
    longer = await kube.pods.delete("p", grace_period=100)
    assert longer is not None
    assert longer["metadata"]["deletionGracePeriodSeconds"] == 7
    assert await kube.pods.delete("p", grace_period=0) is not None
    with pytest.raises(NotFound):
        await kube.pods.get("p")


@behaviour("delete.pod-unscheduled", "A pod that no node has goes at once")
async def test_an_unscheduled_pod_goes_at_once(kube: Kube) -> None:
    await kube.pods.create(pod("p", schedulerName="nobody"))
    await kube.pods.delete("p")
    with pytest.raises(NotFound):
        await kube.pods.get("p")


@behaviour("delete.pod-finished", "A pod that has ended goes at once")
async def test_a_finished_pod_goes_at_once(kube: Kube) -> None:
    await kube.pods.create(pod("p", nodeName="ghost"))
    status = kube.pods.subresource("status")
    await status.patch("p", MergePatch({"status": {"phase": "Succeeded"}}))
    await kube.pods.delete("p")
    with pytest.raises(NotFound):
        await kube.pods.get("p")


@behaviour("delete.generation", "The delete of a held object counts as a change of its generation")
async def test_a_delete_changes_the_generation(kube: Kube) -> None:
    made = deployment()
    made["metadata"]["finalizers"] = [HOLD]
    await kube.deployments.create(made)
    left = await kube.deployments.delete("web")
    assert left is not None
    assert left["metadata"]["generation"] == 2
    await kube.deployments.patch("web", MergePatch({"metadata": {"finalizers": None}}))


@behaviour("delete.foreground-finalizer", "A foreground delete adds foregroundDeletion")
async def test_foreground_is_a_finalizer(kube: Kube) -> None:
    await kube.maps.create(config_map("a", finalizers=[HOLD]))
    left = await kube.maps.delete("a", propagation="Foreground")
    assert left is not None
    assert set(left["metadata"]["finalizers"]) == {HOLD, "foregroundDeletion"}
    await kube.maps.patch("a", MergePatch({"metadata": {"finalizers": None}}))


@behaviour("delete.orphan-finalizer", "A delete that orphans adds the finalizer orphan")
async def test_orphaning_is_a_finalizer(kube: Kube) -> None:
    await kube.maps.create(config_map("a", finalizers=[HOLD]))
    left = await kube.maps.delete("a", propagation="Orphan")
    assert left is not None
    assert set(left["metadata"]["finalizers"]) == {HOLD, "orphan"}
    await kube.maps.patch("a", MergePatch({"metadata": {"finalizers": None}}))


@behaviour("delete.propagation-value", "Other propagation policies are refused")
async def test_propagation_is_checked(kube: Kube) -> None:
    await kube.maps.create(config_map("a"))
    query = {"propagationPolicy": "Sideways"}
    answer = await kube.send("DELETE", kube.path("v1/configmaps", "a"), query=query)
    assert answer.status == 422, answer
    assert "propagationPolicy" in answer.json["message"]


@behaviour("delete.query", "Delete options may come as query parameters")
async def test_options_come_in_the_query_too(kube: Kube) -> None:
    await kube.pods.create(pod("p", nodeName="ghost"))
    query = {"gracePeriodSeconds": "0"}
    answer = await kube.send("DELETE", kube.path("v1/pods", "p"), query=query)
    assert answer.status == 200
    with pytest.raises(NotFound):
        await kube.pods.get("p")


@behaviour("delete.collection", "Deleting a collection obeys label selectors")
async def test_collections_are_deleted_by_label(kube: Kube) -> None:
    for name, tier in (("a", "front"), ("b", "front"), ("c", "back")):
        await kube.maps.create(config_map(name, labels={"tier": tier}))
    await kube.maps.delete_collection(selector="tier=front")
    assert await names(kube.maps, selector="tier") == ["c"]


@behaviour("delete.collection-field", "Deleting a collection obeys field selectors")
async def test_collections_are_deleted_by_field(kube: Kube) -> None:
    for name in ("a", "b"):
        await kube.maps.create(config_map(name, labels={"mine": "yes"}))
    await kube.maps.delete_collection(field_selector="metadata.name=a")
    assert await names(kube.maps, selector="mine") == ["b"]


@behaviour("delete.collection-answer", "Deleting a collection answers with the list of what went")
async def test_a_collection_delete_answers_with_a_list(kube: Kube) -> None:
    await kube.maps.create(config_map("a", labels={"mine": "yes"}))
    query = {"labelSelector": "mine"}
    answer = await kube.send("DELETE", kube.path("v1/configmaps"), query=query)
    assert answer.status == 200
    assert answer.json["kind"] == "ConfigMapList"
    assert [item["metadata"]["name"] for item in answer.json["items"]] == ["a"]


@behaviour("delete.recreate", "A name can be used again, by a new object with a new uid")
async def test_a_name_can_be_used_again(kube: Kube) -> None:
    one = await kube.maps.create(config_map("a"))
    await kube.maps.delete("a")
    two = await kube.maps.create(config_map("a"))
    assert one["metadata"]["uid"] != two["metadata"]["uid"]


@behaviour("delete.event-version", "The event of a deletion has a version of its own")
async def test_a_deletion_is_a_version(kube: Kube) -> None:
    made = await kube.maps.create(config_map("a", labels={"mine": "1"}))
    async with kube.watching(
        kube.maps, resource_version=made["metadata"]["resourceVersion"], label_selector="mine"
    ) as watch:
        await kube.maps.delete("a")
        event = await watch.next()
    assert event.type == "DELETED"
    before, after = (int(o["metadata"]["resourceVersion"]) for o in (made, event.object))
    assert after > before


@behaviour(
    "delete.wait", "A client that waits for a deletion sees it when the last finalizer is removed"
)
async def test_a_deletion_can_be_awaited(kube: Kube) -> None:
    await kube.maps.create(config_map("a", finalizers=[HOLD], labels={"mine": "1"}))
    version = await kube.version_now()
    async with kube.watching(kube.maps, resource_version=version, label_selector="mine") as watch:
        await kube.maps.delete("a")
        await kube.maps.patch("a", MergePatch({"metadata": {"finalizers": None}}))
        assert await watch.names(2) == [("MODIFIED", "a"), ("DELETED", "a")]
