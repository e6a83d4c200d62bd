"""Creating objects."""

from __future__ import annotations

import datetime as dt
import re
import uuid

import pytest

from kubeloop.client import NotFound
from tests.conformance.behaviours import behaviour
from tests.conformance.kube import Kube, fields_of, refused
from tests.conformance.manifests import config_map, deployment, pod


@behaviour("create.metadata", "A new object has a uid, a creation time and a resource version")
async def test_the_server_fills_in_metadata(kube: Kube) -> None:
    before = dt.datetime.now(dt.UTC).replace(microsecond=0)
    made = await kube.maps.create(config_map("a"))
    metadata = made["metadata"]
    assert uuid.UUID(metadata["uid"]).version == 4
    created = dt.datetime.fromisoformat(metadata["creationTimestamp"])
    assert before - dt.timedelta(seconds=1) <= created <= dt.datetime.now(dt.UTC)
    assert metadata["creationTimestamp"].endswith("Z")
    assert int(metadata["resourceVersion"]) > 0
    assert metadata["namespace"] == kube.namespace
    assert "generation" not in metadata


@behaviour("create.own-metadata-ignored", "uid and creation time of the request are not taken over")
async def test_system_metadata_of_the_request_is_ignored(kube: Kube) -> None:
    stamp = "2001-01-01T00:00:00Z"
    obj = config_map(
        "a", uid="mine", creationTimestamp=stamp, deletionTimestamp=stamp, generation=7
    )
    made = await kube.maps.create(obj)
    assert made["metadata"]["uid"] != "mine"
    assert made["metadata"]["creationTimestamp"] != stamp
    assert "deletionTimestamp" not in made["metadata"]


@behaviour(
    "create.resource-version",
    "A create that names a resourceVersion is refused",
    devcluster="a malformed request is its sender's mistake: 400, where the real server says 500",
)
async def test_a_resource_version_is_refused_on_create(kube: Kube) -> None:
    error = await refused(kube.maps.create(config_map("a", resourceVersion="1")), kube.malformed)
    assert "resourceVersion should not be set on objects to be created" in str(error)


@behaviour("create.generation", "Kinds with a spec start at generation 1")
async def test_generation_starts_at_one(kube: Kube) -> None:
    assert (await kube.deployments.create(deployment()))["metadata"]["generation"] == 1


@behaviour("create.generate-name", "generateName makes a name: the prefix and five characters")
async def test_a_name_is_generated(kube: Kube) -> None:
    made = await kube.maps.create({"metadata": {"generateName": "made-"}})
    assert re.fullmatch(r"made-[bcdfghjklmnpqrstvwxz2456789]{5}", made["metadata"]["name"])
    assert made["metadata"]["generateName"] == "made-"


@behaviour("create.exists", "A second create of a name is 409 AlreadyExists and names the object")
async def test_a_name_is_taken_once(kube: Kube) -> None:
    await kube.maps.create(config_map("a"))
    error = await refused(kube.maps.create(config_map("a")), 409, "AlreadyExists")
    assert str(error) == 'configmaps "a" already exists'
    assert error.status.details is not None
    assert (error.status.details.name, error.status.details.kind) == ("a", "configmaps")


@behaviour("create.no-name", "An object with neither name nor generateName is refused")
async def test_a_name_is_required(kube: Kube) -> None:
    error = await refused(kube.maps.create({"metadata": {}}), 422, "Invalid")
    assert "name or generateName is required" in str(error)
    assert fields_of(error) == {"metadata.name"}


@behaviour("create.namespace-missing", "Nothing can be created in a namespace that does not exist")
async def test_a_namespace_must_exist(kube: Kube) -> None:
    maps = kube.client.resource("v1/configmaps", namespace="nowhere")
    error = await refused(maps.create(config_map("a")), 404, "NotFound")
    assert 'namespaces "nowhere" not found' in str(error)


@behaviour("create.namespace-mismatch", "The body's namespace must be the path's")
async def test_the_namespace_of_the_body_must_agree(kube: Kube) -> None:
    body = config_map("a", namespace="other")
    answer = await kube.send("POST", kube.path("v1/configmaps"), body)
    assert answer.status == 400
    assert (
        answer.json["message"]
        == "the namespace of the provided object does not match the namespace sent on the request"
    )


@behaviour("create.kind-mismatch", "A body of another kind than the path's is refused")
async def test_the_kind_of_the_body_must_agree(kube: Kube) -> None:
    body = config_map("a") | {"kind": "Secret"}
    answer = await kube.send("POST", kube.path("v1/configmaps"), body)
    assert answer.status == 400, answer
    assert "Secret in version" in answer.json["message"]
    assert "cannot be handled as a ConfigMap" in answer.json["message"]


@behaviour("create.malformed", "A body that is not JSON is 400 BadRequest")
async def test_malformed_json_is_refused(kube: Kube) -> None:
    answer = await kube.send("POST", kube.path("v1/configmaps"), b'{"kind": ')
    assert (answer.status, answer.json["reason"]) == (400, "BadRequest")


@behaviour("create.yaml", "A body may be YAML")
async def test_yaml_is_understood(kube: Kube) -> None:
    body = b"apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: a\ndata:\n  x: '1'\n"
    answer = await kube.send("POST", kube.path("v1/configmaps"), body, kind="application/yaml")
    assert answer.status == 201, answer
    assert answer.json["data"] == {"x": "1"}


@behaviour("create.wrong-type", "A field of the wrong type is 400 and the message names the type")
async def test_a_wrong_type_is_refused(kube: Kube) -> None:
    body = deployment()
    body["spec"]["replicas"] = "three"
    answer = await kube.send("POST", kube.path("apps/v1/deployments"), body)
    assert (answer.status, answer.json["reason"]) == (400, "BadRequest")
    assert "cannot be handled as a Deployment" in answer.json["message"]


@behaviour("create.status-ignored", "Status in a created object is dropped if it has its own path")
async def test_status_is_dropped_on_create(kube: Kube) -> None:
    made = await kube.deployments.create(deployment() | {"status": {"replicas": 7}})
    assert made["status"].get("replicas") is None


@behaviour("create.defaults", "Defaults of the built-in kinds are stored and returned")
async def test_defaults_are_filled_in(kube: Kube) -> None:
    spec = (await kube.deployments.create(deployment()))["spec"]
    assert spec["strategy"] == {
        "type": "RollingUpdate",
        "rollingUpdate": {"maxUnavailable": "25%", "maxSurge": "25%"},
    }
    assert spec["revisionHistoryLimit"] == 10
    assert spec["progressDeadlineSeconds"] == 600
    template = spec["template"]["spec"]
    assert template["restartPolicy"] == "Always"
    assert template["dnsPolicy"] == "ClusterFirst"
    assert template["schedulerName"] == "default-scheduler"
    (container,) = template["containers"]
    assert container["terminationMessagePath"] == "/dev/termination-log"
    assert container["imagePullPolicy"] == "IfNotPresent"


@behaviour("create.pod-defaults", "A pod gets its defaults, among them the QoS class and the phase")
async def test_pods_get_their_defaults(kube: Kube) -> None:
    made = await kube.pods.create(pod("p", schedulerName="nobody"))
    assert made["status"]["phase"] == "Pending"
    assert made["status"]["qosClass"] == "BestEffort"
    assert made["spec"]["enableServiceLinks"] is True
    assert made["spec"]["serviceAccountName"] == "default"
    assert made["spec"]["preemptionPolicy"] == "PreemptLowerPriority"
    assert {t["key"] for t in made["spec"]["tolerations"]} == {
        "node.kubernetes.io/not-ready",
        "node.kubernetes.io/unreachable",
    }


@behaviour("create.dry-run", "A dry run answers as a create does and stores nothing")
async def test_a_dry_run_stores_nothing(kube: Kube) -> None:
    made = await kube.maps.create(config_map("dry"), dry_run=True)
    assert made["metadata"]["uid"]
    with pytest.raises(NotFound):
        await kube.maps.get("dry")
    await refused(kube.maps.create(config_map("BAD"), dry_run=True), 422, "Invalid")


@behaviour("create.dry-run-value", "dryRun takes no value but All")
async def test_dry_run_values_are_checked(kube: Kube) -> None:
    answer = await kube.send(
        "POST", kube.path("v1/configmaps"), config_map("a"), query={"dryRun": "Some"}
    )
    assert (answer.status, answer.json["reason"]) == (422, "Invalid")
    assert 'dryRun: Unsupported value: ["Some"]' in answer.json["message"]


@behaviour("create.answer", "A create answers 201 with the kind and version that were asked for")
async def test_a_create_answers_201(kube: Kube) -> None:
    answer = await kube.send("POST", kube.path("v1/configmaps"), {"metadata": {"name": "a"}})
    assert answer.status == 201
    assert (answer.json["apiVersion"], answer.json["kind"]) == ("v1", "ConfigMap")
    assert answer.headers["Content-Type"] == "application/json"


@behaviour("create.strict", "fieldValidation=Strict refuses unknown and duplicate fields, named")
async def test_strict_validation_refuses(kube: Kube) -> None:
    unknown = config_map("a") | {"wrong": 1}
    error = await refused(kube.maps.create(unknown, field_validation="Strict"), 400, "BadRequest")
    assert 'strict decoding error: unknown field "wrong"' in str(error)
    twice = b'{"metadata":{"name":"a"},"data":{"x":"1","x":"2"},"immutable":false,"immutable":true}'
    strict = {"fieldValidation": "Strict"}
    answer = await kube.send("POST", kube.path("v1/configmaps"), twice, query=strict)
    assert answer.status == 400, answer
    assert 'duplicate field "immutable"' in answer.json["message"]


@behaviour("create.warn", "By default unknown fields are dropped and warned of")
async def test_unknown_fields_are_warned_of(kube: Kube) -> None:
    body = deployment("a")
    body["spec"]["template"]["spec"]["colour"] = "red"
    answer = await kube.send("POST", kube.path("apps/v1/deployments"), body)
    assert answer.status == 201
    assert answer.warnings == ['299 - "unknown field \\"spec.template.spec.colour\\""']
    assert "colour" not in answer.json["spec"]["template"]["spec"]


@behaviour("create.warn-duplicate", "By default the last of duplicate fields wins, with a warning")
async def test_duplicate_fields_are_warned_of(kube: Kube) -> None:
    body = b'{"metadata":{"name":"a"},"immutable":false,"immutable":true}'
    answer = await kube.send("POST", kube.path("v1/configmaps"), body)
    assert answer.status == 201
    assert answer.warnings == ['299 - "duplicate field \\"immutable\\""']
    assert answer.json["immutable"] is True


@behaviour("create.ignore", "fieldValidation=Ignore drops unknown fields in silence")
async def test_validation_can_be_ignored(kube: Kube) -> None:
    answer = await kube.send(
        "POST",
        kube.path("v1/configmaps"),
        config_map("a") | {"wrong": 1},
        query={"fieldValidation": "Ignore"},
    )
    assert answer.status == 201
    assert answer.warnings == []
    assert "wrong" not in answer.json


@behaviour("create.validation-value", "fieldValidation takes no other values")
async def test_field_validation_values_are_checked(kube: Kube) -> None:
    answer = await kube.send(
        "POST", kube.path("v1/configmaps"), config_map("a"), query={"fieldValidation": "Maybe"}
    )
    assert answer.status == 422, answer
    assert "fieldValidation" in answer.json["message"]
