"""Create, get, update: metadata, generation, status, conflicts, dry runs."""

from __future__ import annotations

import json

from tests.apiserver.harness import CONFIG_MAPS, DEPLOYMENTS, config_map, deployment


async def test_a_created_object_has_identity_defaults_and_an_owner(kube):
    made = await kube.create(DEPLOYMENTS, deployment(), fieldManager="me")
    assert made.code == 201
    metadata = made["metadata"]
    assert metadata["uid"]
    assert metadata["creationTimestamp"].endswith("Z")
    assert metadata["generation"] == 1
    assert metadata["namespace"] == "default"
    assert [entry["manager"] for entry in metadata["managedFields"]] == ["me"]
    assert made["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": "25%", "maxUnavailable": "25%"}
    assert made["status"] == {}
    assert (await kube.get(f"{DEPLOYMENTS}/web")).body == made.body


async def test_what_the_server_owns_cannot_be_set_at_creation(kube):
    body = deployment()
    body["metadata"] |= {
        "uid": "mine",
        "generation": 7,
        "deletionTimestamp": "2020-01-01T00:00:00Z",
    }
    body["status"] = {"replicas": 5}
    made = await kube.create(DEPLOYMENTS, body)
    assert made["metadata"]["uid"] != "mine"
    assert made["metadata"]["generation"] == 1
    assert "deletionTimestamp" not in made["metadata"]
    assert made["status"] == {}


async def test_generated_names_differ(kube):
    body = {"metadata": {"generateName": "job-"}, "data": {}}
    names = {(await kube.create(CONFIG_MAPS, body))["metadata"]["name"] for _ in range(5)}
    assert len(names) == 5
    assert all(name.startswith("job-") and len(name) == 9 for name in names)


async def test_a_namespace_must_exist(kube):
    reply = await kube.create("/api/v1/namespaces/nowhere/configmaps", config_map("a"))
    assert (reply.code, reply["reason"]) == (404, "NotFound")
    assert reply["message"] == 'namespaces "nowhere" not found'


async def test_a_name_is_taken_once(kube):
    await kube.create(CONFIG_MAPS, config_map("a"))
    reply = await kube.create(CONFIG_MAPS, config_map("a"))
    assert (reply.code, reply["reason"]) == (409, "AlreadyExists")
    assert reply["details"] == {"name": "a", "kind": "configmaps"}


async def test_an_update_counts_the_generation_only_when_the_wish_changes(kube):
    made = await kube.create(DEPLOYMENTS, deployment())
    labelled = await kube.merge(f"{DEPLOYMENTS}/web", {"metadata": {"labels": {"a": "b"}}})
    assert labelled["metadata"]["generation"] == 1
    assert labelled["metadata"]["resourceVersion"] != made["metadata"]["resourceVersion"]
    scaled = await kube.merge(f"{DEPLOYMENTS}/web", {"spec": {"replicas": 4}})
    assert scaled["metadata"]["generation"] == 2


async def test_an_update_that_changes_nothing_keeps_its_version(kube):
    made = await kube.create(DEPLOYMENTS, deployment())
    again = await kube.update(f"{DEPLOYMENTS}/web", made.body)
    assert again["metadata"]["resourceVersion"] == made["metadata"]["resourceVersion"]


async def test_a_stale_version_conflicts(kube):
    made = await kube.create(DEPLOYMENTS, deployment())
    await kube.merge(f"{DEPLOYMENTS}/web", {"spec": {"replicas": 4}})
    reply = await kube.update(f"{DEPLOYMENTS}/web", made.body)
    assert (reply.code, reply["reason"]) == (409, "Conflict")
    assert reply["message"] == (
        'Operation cannot be fulfilled on deployments.apps "web": the object has been modified;'
        " please apply your changes to the latest version and try again"
    )


async def test_another_uid_conflicts(kube):
    await kube.create(DEPLOYMENTS, deployment())
    body = deployment()
    body["metadata"]["uid"] = "other"
    assert (await kube.update(f"{DEPLOYMENTS}/web", body)).code == 409


async def test_status_and_spec_are_written_through_their_own_doors(kube):
    await kube.create(DEPLOYMENTS, deployment())
    both = {"spec": {"replicas": 9}, "status": {"replicas": 3}}
    main = await kube.merge(f"{DEPLOYMENTS}/web", both)
    assert (main["spec"]["replicas"], main["status"]) == (9, {})
    status = await kube.merge(
        f"{DEPLOYMENTS}/web/status", {"spec": {"replicas": 1}, "status": {"replicas": 3}}
    )
    assert (status["spec"]["replicas"], status["status"]) == (9, {"replicas": 3})
    assert status["metadata"]["generation"] == main["metadata"]["generation"]


async def test_a_dry_run_answers_and_keeps_nothing(kube):
    reply = await kube.create(DEPLOYMENTS, deployment(), dryRun="All")
    assert reply.code == 201
    assert "resourceVersion" not in reply["metadata"]
    assert (await kube.get(f"{DEPLOYMENTS}/web")).code == 404
    await kube.create(DEPLOYMENTS, deployment())
    changed = await kube.merge(f"{DEPLOYMENTS}/web", {"spec": {"replicas": 7}}, dryRun="All")
    assert changed["spec"]["replicas"] == 7
    assert (await kube.get(f"{DEPLOYMENTS}/web"))["spec"]["replicas"] == 2
    assert (await kube.delete(f"{DEPLOYMENTS}/web", dryRun="All")).code == 200
    assert (await kube.get(f"{DEPLOYMENTS}/web")).code == 200


async def test_unknown_fields_are_refused_warned_about_or_ignored(kube):
    body = deployment(foo=1)
    strict = await kube.create(DEPLOYMENTS, body, fieldValidation="Strict")
    assert strict.code == 400
    assert strict["message"].endswith('strict decoding error: unknown field "spec.foo"')
    warned = await kube.create(DEPLOYMENTS, body, dryRun="All")
    assert warned.headers["Warning"] == '299 - "unknown field \\"spec.foo\\""'
    assert "foo" not in warned["spec"]
    ignored = await kube.create(DEPLOYMENTS, body, dryRun="All", fieldValidation="Ignore")
    assert "Warning" not in ignored.headers


async def test_repeated_fields_are_refused_when_strict(kube):
    text = json.dumps(deployment()).replace('"replicas": 2', '"replicas": 1, "replicas": 2')
    reply = await kube.create(DEPLOYMENTS, text.encode(), fieldValidation="Strict")
    assert reply["message"].endswith('strict decoding error: duplicate field "spec.replicas"')
    accepted = await kube.create(DEPLOYMENTS, text.encode(), fieldValidation="Ignore")
    assert accepted["spec"]["replicas"] == 2


async def test_a_wrong_type_is_a_malformed_request(kube):
    reply = await kube.create(DEPLOYMENTS, deployment(replicas="two"))
    assert (reply.code, reply["reason"]) == (400, "BadRequest")
    assert reply["message"] == (
        'Deployment in version "v1" cannot be handled as a Deployment: json: cannot unmarshal string'
        " into Go struct field DeploymentSpec.spec.replicas of type int32"
    )


async def test_the_body_must_be_of_the_path_s_kind_name_and_namespace(kube):
    assert (await kube.create(DEPLOYMENTS, {**deployment(), "kind": "Pod"})).code == 400
    assert (await kube.create(DEPLOYMENTS, {**deployment(), "apiVersion": "apps/v2"})).code == 400
    body = deployment()
    body["metadata"]["namespace"] = "other"
    assert (await kube.create(DEPLOYMENTS, body)).code == 400
    await kube.create(DEPLOYMENTS, deployment())
    assert (await kube.update(f"{DEPLOYMENTS}/web", deployment("other"))).code == 400


async def test_a_body_may_be_yaml(kube):
    reply = await kube.send(
        "POST", CONFIG_MAPS, b"metadata: {name: y}\ndata: {a: b}\n", kind="application/yaml"
    )
    assert reply["data"] == {"a": "b"}
    shown = await kube.send("GET", f"{CONFIG_MAPS}/y", accept="application/yaml")
    assert "kind: ConfigMap" in shown.body


async def test_unknown_media_types_are_refused(kube):
    assert (await kube.send("POST", CONFIG_MAPS, b"x", kind="text/csv")).code == 415
    assert (await kube.send("GET", CONFIG_MAPS, accept="text/csv")).code == 406


async def test_a_body_may_not_be_endless(kube):
    reply = await kube.create(CONFIG_MAPS, b" " * (4 * 1024 * 1024))
    assert (reply.code, reply["reason"]) == (413, "RequestEntityTooLarge")


async def test_what_is_not_served_is_not_found(kube):
    assert (await kube.get("/apis/apps/v1/namespaces/default/things")).code == 404
    assert (await kube.get("/apis/nothing.io/v1/things")).code == 404
    assert (await kube.get("/nothing")).code == 404
    assert (await kube.send("PUT", DEPLOYMENTS, deployment())).code == 405
    assert (await kube.create(f"{DEPLOYMENTS}/web", deployment())).code == 405
