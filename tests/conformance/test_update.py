"""Reading and replacing objects: versions, conflicts, generations, status."""

from __future__ import annotations

import copy

import pytest

from kubeloop.client import NotFound
from kubeloop.client.errors import error_from_object, is_version_too_large
from kubeloop.objects.patches import MergePatch
from tests.conformance.behaviours import behaviour
from tests.conformance.kube import Kube, refused
from tests.conformance.manifests import config_map, deployment, pod, service


@behaviour("get.not-found", "A missing object is 404 with its name and resource in the details")
async def test_a_missing_object_is_named(kube: Kube) -> None:
    error = await refused(kube.deployments.get("none"), 404, "NotFound")
    assert str(error) == 'deployments.apps "none" not found'
    details = error.status.details
    assert details is not None
    assert (details.name, details.group, details.kind) == ("none", "apps", "deployments")


@behaviour("get.unknown-path", "A path of no resource is 404 without an object's name")
async def test_an_unknown_resource_is_not_an_object(kube: Kube) -> None:
    for path in ("/apis/apps/v1/nonsense", "/api/v1/nonsense"):
        answer = await kube.send("GET", path)
        assert answer.status == 404
        assert answer.json["message"] == "the server could not find the requested resource"


@behaviour(
    "get.resource-version",
    "A get may ask for a version no older than one that it has seen",
    devcluster="a malformed request is its sender's mistake: 400, where the real server says 500",
)
async def test_get_at_a_version(kube: Kube) -> None:
    made = await kube.maps.create(config_map("a"))
    version = made["metadata"]["resourceVersion"]
    assert await kube.maps.get("a", resource_version=version) == made
    error = await refused(kube.maps.get("a", resource_version="nonsense"), kube.malformed)
    assert 'resourceVersion: Invalid value: "nonsense"' in str(error)


@behaviour(
    "get.too-large", "A get of a version from the future times out, with a cause that says so"
)
async def test_get_of_the_future(kube: Kube) -> None:
    await kube.maps.create(config_map("a"))
    future = str(int(await kube.version_now()) + 1_000_000)
    # Raw, since the client heeds the advice to try again.
    answer = await kube.raw.get(kube.path("v1/configmaps", "a"), resourceVersion=future)
    assert answer.status == 504
    assert is_version_too_large(error_from_object(answer.json))


@behaviour("update.version-changes", "Every change gives a larger resourceVersion")
async def test_versions_grow(kube: Kube) -> None:
    one = await kube.maps.create(config_map("a"))
    two = await kube.maps.replace(one | {"data": {"x": "1"}})
    first, second = (int(obj["metadata"]["resourceVersion"]) for obj in (one, two))
    assert second > first
    assert two["metadata"]["uid"] == one["metadata"]["uid"]
    assert two["metadata"]["creationTimestamp"] == one["metadata"]["creationTimestamp"]


@behaviour("update.no-op", "A write that changes nothing leaves the resourceVersion")
async def test_an_update_without_a_change_writes_nothing(kube: Kube) -> None:
    one = await kube.maps.create(config_map("a", {"x": "1"}))
    two = await kube.maps.replace(one)
    assert two["metadata"]["resourceVersion"] == one["metadata"]["resourceVersion"]


@behaviour("update.conflict", "A stale resourceVersion is 409 Conflict")
async def test_a_stale_version_conflicts(kube: Kube) -> None:
    one = await kube.maps.create(config_map("a"))
    await kube.maps.replace(one | {"data": {"x": "1"}})
    error = await refused(kube.maps.replace(one | {"data": {"x": "2"}}), 409, "Conflict")
    assert (
        str(error)
        == 'Operation cannot be fulfilled on configmaps "a": the object has been modified;'
        " please apply your changes to the latest version and try again"
    )
    details = error.status.details
    assert details is not None
    assert (details.name, details.kind) == ("a", "configmaps")


@behaviour("update.unconditional", "Without a resourceVersion an update overwrites")
async def test_an_update_without_a_version_overwrites(kube: Kube) -> None:
    await kube.maps.create(config_map("a", {"x": "1"}))
    assert (await kube.maps.replace(config_map("a", {"x": "2"})))["data"] == {"x": "2"}


@behaviour("update.uid", "An update that names another uid is 409 Conflict")
async def test_a_stale_uid_conflicts(kube: Kube) -> None:
    await kube.maps.create(config_map("a"))
    error = await refused(kube.maps.replace(config_map("a", uid="other")), 409, "Conflict")
    assert "Precondition failed: UID in precondition: other, UID in object meta: " in str(error)


@behaviour("update.name-mismatch", "The body's name must be the path's")
async def test_the_name_of_the_body_must_agree(kube: Kube) -> None:
    await kube.maps.create(config_map("a"))
    answer = await kube.send("PUT", kube.path("v1/configmaps", "a"), config_map("b"))
    assert answer.status == 400
    assert (
        answer.json["message"]
        == "the name of the object (b) does not match the name on the URL (a)"
    )


@behaviour("update.missing", "An update of a missing object is 404")
async def test_an_update_of_nothing_is_not_found(kube: Kube) -> None:
    with pytest.raises(NotFound, match='configmaps "a" not found'):
        await kube.maps.replace(config_map("a"))


@behaviour(
    "update.create-on-update", "A PUT makes missing Leases, Services and Roles, others are 404"
)
async def test_a_put_creates_what_may_be_created_so(kube: Kube) -> None:
    expected = {
        "coordination.k8s.io/v1/leases": 201,
        "rbac.authorization.k8s.io/v1/roles": 201,
        "v1/services": 201,
        "v1/limitranges": 201,
        "v1/configmaps": 404,
        "v1/secrets": 404,
        "policy/v1/poddisruptionbudgets": 404,
    }
    bodies = {"v1/services": service("a"), "v1/limitranges": {"spec": {"limits": []}}}
    found = {}
    for resource in expected:
        body = {**bodies.get(resource, {}), "metadata": {"name": "a"}}
        found[resource] = (await kube.send("PUT", kube.path(resource, "a"), body)).status
    assert found == expected


@behaviour("update.immutable-metadata", "Creation time, uid and deletion time cannot be changed")
async def test_system_metadata_stays(kube: Kube) -> None:
    one = await kube.maps.create(config_map("a"))
    changed = copy.deepcopy(one)
    changed["metadata"]["creationTimestamp"] = "2001-01-01T00:00:00Z"
    changed["data"] = {"x": "1"}
    two = await kube.maps.replace(changed)
    assert two["metadata"]["creationTimestamp"] == one["metadata"]["creationTimestamp"]
    doomed = copy.deepcopy(two)
    doomed["metadata"]["deletionTimestamp"] = "2001-01-01T00:00:00Z"
    error = await refused(kube.maps.replace(doomed), 422, "Invalid")
    assert "metadata.deletionTimestamp: Invalid value" in str(error)
    assert "field is immutable" in str(error)


@behaviour("update.generation", "The generation counts changes of spec, not of metadata or status")
async def test_generation_counts_spec_changes(kube: Kube) -> None:
    deployments = kube.deployments
    await deployments.create(deployment())
    labelled = await deployments.patch("web", MergePatch({"metadata": {"labels": {"a": "b"}}}))
    assert labelled["metadata"]["generation"] == 1
    scaled = await deployments.patch("web", MergePatch({"spec": {"minReadySeconds": 3}}))
    assert scaled["metadata"]["generation"] == 2
    status = deployments.subresource("status")
    stated = await status.patch("web", MergePatch({"status": {"collisionCount": 1}}))
    assert stated["metadata"]["generation"] == 2


@behaviour("update.status-untouched", "An update of the object leaves its status alone")
async def test_an_update_leaves_status(kube: Kube) -> None:
    await kube.deployments.create(deployment())
    status = kube.deployments.subresource("status")
    await status.patch("web", MergePatch({"status": {"collisionCount": 4}}))
    now = await kube.deployments.get("web")
    now["status"] = {"collisionCount": 9}
    del now["metadata"]["resourceVersion"]
    assert (await kube.deployments.replace(now))["status"]["collisionCount"] == 4


@behaviour("status.spec-untouched", "An update of the status leaves spec, and keeps metadata apart")
async def test_a_status_update_leaves_spec(kube: Kube) -> None:
    made = await kube.pods.create(pod("p", schedulerName="nobody"))
    made["status"]["message"] = "hello"
    made["spec"]["containers"][0]["image"] = "other:2"
    made["metadata"]["labels"] = {"seen": "yes"}
    del made["metadata"]["resourceVersion"]
    stated = await kube.pods.subresource("status").replace(made)
    assert stated["status"]["message"] == "hello"
    assert stated["spec"]["containers"][0]["image"] == "web:1"


@behaviour("status.conflict", "A status update with a stale resourceVersion is 409")
async def test_status_updates_conflict(kube: Kube) -> None:
    made = await kube.pods.create(pod("p", schedulerName="nobody"))
    await kube.pods.patch("p", MergePatch({"metadata": {"labels": {"a": "b"}}}))
    made["status"]["message"] = "hello"
    await refused(kube.pods.subresource("status").replace(made), 409, "Conflict")


@behaviour("status.not-found", "Kinds without a status subresource have no such path")
async def test_not_every_kind_has_a_status(kube: Kube) -> None:
    await kube.maps.create(config_map("a"))
    answer = await kube.send("GET", kube.path("v1/configmaps", "a", "status"))
    assert answer.status == 404


@behaviour("update.dry-run", "A dry run of an update answers with the outcome and stores nothing")
async def test_a_dry_run_updates_nothing(kube: Kube) -> None:
    one = await kube.maps.create(config_map("a", {"x": "1"}))
    answer = await kube.maps.replace(one | {"data": {"x": "2"}}, dry_run=True)
    assert answer["data"] == {"x": "2"}
    assert await kube.maps.get("a") == one


@behaviour(
    "update.immutable-configmap", "An immutable ConfigMap keeps its data and stays immutable"
)
async def test_immutable_maps_stay(kube: Kube) -> None:
    made = await kube.maps.create(config_map("a", {"x": "1"}) | {"immutable": True})
    error = await refused(kube.maps.replace(made | {"data": {"x": "2"}}), 422, "Invalid")
    assert "data: Forbidden: field is immutable when `immutable` is set" in str(error)
    await refused(kube.maps.replace(made | {"immutable": False}), 422, "Invalid")


@behaviour("update.pod-spec", "Of a pod's spec only few fields may change, the image among them")
async def test_pod_specs_are_almost_immutable(kube: Kube) -> None:
    made = await kube.pods.create(pod("p", schedulerName="nobody"))
    made["spec"]["containers"][0]["image"] = "web:2"
    made = await kube.pods.replace(made)
    assert made["spec"]["containers"][0]["image"] == "web:2"
    made["spec"]["hostname"] = "elsewhere"
    error = await refused(kube.pods.replace(made), 422, "Invalid")
    assert "spec: Forbidden: pod updates may not change fields other than" in str(error)


@behaviour("update.method-not-allowed", "A verb that a resource does not serve is 405")
async def test_unsupported_verbs_are_reported(kube: Kube) -> None:
    answer = await kube.send("PUT", kube.path("v1/configmaps"), config_map("a"))
    assert (answer.status, answer.json["reason"]) == (405, "MethodNotAllowed")
    assert (
        answer.json["message"] == "the server does not allow this method on the requested resource"
    )


@behaviour("update.cluster-ip-kept", "An update without clusterIP keeps the one that was allocated")
async def test_a_cluster_ip_is_kept(kube: Kube) -> None:
    made = await kube.services.create(service())
    again = service()
    again["metadata"]["labels"] = {"a": "b"}
    replaced = await kube.services.replace(again)
    assert replaced["spec"]["clusterIP"] == made["spec"]["clusterIP"]
    assert replaced["metadata"]["labels"] == {"a": "b"}
