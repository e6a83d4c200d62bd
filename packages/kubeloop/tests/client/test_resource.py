"""Resources against a scripted server: every method's request, and what comes back."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from tests.client.rest import Pod, RenewableToken, client_of, pod, pod_list
from tests.testing.scripted_answers import drop, raw, refuse, reply
from tests.testing.scripted_server import ScriptedServer

from kubeloop.client.auth.identity import Impersonation
from kubeloop.client.errors import (
    ApiError,
    Conflict,
    Gone,
    MethodNotAllowed,
    NotFound,
    ProtocolError,
    TooManyRequests,
    Unauthorized,
)
from kubeloop.client.request import Preconditions
from kubeloop.client.resource import Resource
from kubeloop.informer.reflector.source import ListWatch
from kubeloop.objects.list_watch import ListOptions, WatchOptions
from kubeloop.objects.meta import JsonObject, LabeledMeta, ObjectMeta, PartialObjectMetadata
from kubeloop.objects.patches import ApplyPatch, JsonPatch, MergePatch

PODS = "/api/v1/namespaces/default/pods"
ONE = f"{PODS}/web-0"


async def test_get_reads_one_object_as_a_dictionary():
    async with ScriptedServer() as server, client_of(server) as client:
        server.expect("GET", ONE, reply(pod()))
        assert await client.resource("v1/pods").get("web-0", namespace="default") == pod()


async def test_get_reads_one_object_as_the_callers_struct():
    async with ScriptedServer() as server, client_of(server) as client:
        server.expect("GET", ONE, reply(pod()), query={"resourceVersion": "0"})
        pods = client.resource("v1/pods", Pod, namespace="default")
        found = await pods.get("web-0", resource_version="0")
    assert isinstance(found, Pod)
    assert (found.metadata.name, found.metadata.resource_version) == ("web-0", "1")


async def test_managed_fields_can_be_left_out_of_dictionaries():
    async with ScriptedServer() as server, client_of(server) as client:
        server.serve("GET", ONE, reply({"metadata": {"name": "web-0", "managedFields": [{}]}}))
        pods = client.resource("v1/pods", namespace="default")
        assert "managedFields" in (await pods.get("web-0"))["metadata"]
        short = pods.without_managed_fields()
        assert (await short.get("web-0"))["metadata"] == {"name": "web-0"}
        assert short.namespace == "default"


async def test_named_group_and_prefix_are_part_of_path():
    path = "/k8s/apis/apps/v1/namespaces/a/deployments/web"
    async with ScriptedServer() as server, client_of(server, prefix="/k8s") as client:
        server.expect("GET", path, reply({"metadata": {"name": "web"}}))
        found = await client.resource("apps/v1/deployments").get("web", namespace="a")
    assert found["metadata"]["name"] == "web"


async def test_create_posts_to_the_objects_own_namespace():
    async with ScriptedServer() as server, client_of(server) as client:
        server.expect("POST", PODS, reply(pod(version="2"), status=201))
        created = await client.resource("v1/pods").create(
            pod(), dry_run=True, field_manager="me", field_validation="Strict"
        )
        (request,) = server.requests
    assert created["metadata"]["resourceVersion"] == "2"
    assert request.query == {"dryRun": "All", "fieldManager": "me", "fieldValidation": "Strict"}
    assert request.json() == pod()
    assert request.headers["content-type"] == "application/json"


async def test_create_lets_the_server_choose_a_name():
    obj: JsonObject = {"metadata": {"generateName": "web-"}}
    async with ScriptedServer() as server, client_of(server) as client:
        server.expect("POST", PODS, reply(pod("web-x7")))
        created = await client.resource("v1/pods").create(obj, namespace="default")
    assert created["metadata"]["name"] == "web-x7"


async def test_replace_puts_the_object_to_its_own_path():
    obj = Pod(metadata=ObjectMeta(name="web-0", namespace="default", resource_version="1"))
    async with ScriptedServer() as server, client_of(server) as client:
        server.expect("PUT", ONE, reply(pod(version="2")))
        replaced = await client.resource("v1/pods", Pod).replace(obj, field_manager="me")
        (request,) = server.requests
    assert replaced.metadata.resource_version == "2"
    assert request.json()["metadata"] == pod()["metadata"]
    assert request.query == {"fieldManager": "me"}


@pytest.mark.parametrize(
    ("patch", "content_type", "body"),
    [
        (MergePatch({"a": None}), "application/merge-patch+json", {"a": None}),
        (JsonPatch([{"op": "remove", "path": "/a"}]), "application/json-patch+json", None),
        (ApplyPatch(pod()), "application/apply-patch+yaml", pod()),
    ],
)
async def test_patch_sends_the_patch_with_its_own_type(patch, content_type, body):
    async with ScriptedServer() as server, client_of(server) as client:
        server.expect("PATCH", ONE, reply(pod()))
        await client.resource("v1/pods").patch("web-0", patch, namespace="default", force=True)
        (request,) = server.requests
    assert request.headers["content-type"] == content_type
    assert request.query == {"force": "true"}
    assert body is None or request.json() == body


async def test_apply_patches_by_the_objects_name_and_needs_a_manager():
    async with ScriptedServer() as server, client_of(server) as client:
        pods = client.resource("v1/pods")
        server.expect("PATCH", ONE, reply(pod()), refuse(409, "Conflict"))
        await pods.apply(pod(), field_manager="me", force=True)
        with pytest.raises(Conflict):
            await pods.apply(pod(), field_manager="me")
        with pytest.raises(ValueError, match="apply needs field_manager="):
            await pods.apply(pod())
        first, second = server.requests
    assert first.headers["content-type"] == "application/apply-patch+yaml"
    assert first.query == {"fieldManager": "me", "force": "true"}
    assert second.query == {"fieldManager": "me"}
    assert first.json() == pod()


async def test_delete_sends_its_options_and_returns_what_is_left():
    async with ScriptedServer() as server, client_of(server) as client:
        pods = client.resource("v1/pods", namespace="default")
        server.expect("DELETE", ONE, reply(pod()), reply({"kind": "Status", "status": "Success"}))
        left = await pods.delete(
            "web-0",
            preconditions=Preconditions(uid="u"),
            propagation="Foreground",
            grace_period=0,
        )
        gone = await pods.delete("web-0")
        first, _ = server.requests
    assert left == pod()
    assert gone is None
    assert first.json()["preconditions"] == {"uid": "u"}
    assert first.json()["propagationPolicy"] == "Foreground"
    assert first.json()["gracePeriodSeconds"] == 0


async def test_delete_collection_takes_selectors():
    async with ScriptedServer() as server, client_of(server) as client:
        server.expect("DELETE", PODS, reply(pod_list()))
        await client.resource("v1/pods").delete_collection(
            namespace="default", selector={"app": "web"}, field_selector="status.phase=Failed"
        )
        (request,) = server.requests
    assert request.query == {"labelSelector": "app=web", "fieldSelector": "status.phase=Failed"}


async def test_items_walks_the_pages_of_one_snapshot():
    async with ScriptedServer() as server, client_of(server) as client:
        server.expect(
            "GET",
            "/api/v1/pods",
            reply(pod_list("a", "b", version="10", token="t1")),
            reply(pod_list("c", version="11")),
        )
        pager = client.resource("v1/pods").items(
            selector="app in (web)", page_size=2, resource_version="5"
        )
        names = [item["metadata"]["name"] async for item in pager]
        first, second = server.requests
    assert names == ["a", "b", "c"]
    assert pager.resource_version == "10"
    assert first.query == {"labelSelector": "app in (web)", "limit": "2", "resourceVersion": "5"}
    assert second.query == {"labelSelector": "app in (web)", "limit": "2", "continue": "t1"}


class Scale(msgspec.Struct, rename="camel", omit_defaults=True):
    metadata: LabeledMeta = msgspec.field(default_factory=LabeledMeta)
    spec: dict[str, int] = msgspec.field(default_factory=dict)


async def test_a_subresource_is_read_replaced_patched_and_posted_to():
    path = "/apis/apps/v1/namespaces/a/deployments/web/scale"
    document = {"metadata": {"name": "web", "namespace": "a"}, "spec": {"replicas": 3}}
    async with ScriptedServer() as server, client_of(server) as client:
        for method in ("GET", "PUT", "PATCH"):
            server.expect(method, path, reply(document))
        deployments = client.resource("apps/v1/deployments")
        scale = deployments.subresource("scale", Scale)
        found = await scale.get("web", namespace="a")
        found.spec["replicas"] = 0
        await scale.replace(found, field_manager="me")
        await scale.patch("web", MergePatch({"spec": {"replicas": 1}}), namespace="a")
        _, put, patch = server.requests
        eviction = "/api/v1/namespaces/a/pods/x/eviction"
        server.expect("POST", eviction, reply({"metadata": {}}))
        body: JsonObject = {"apiVersion": "policy/v1", "kind": "Eviction"}
        await client.resource("v1/pods").subresource("eviction").create("x", body, namespace="a")
    assert put.json()["spec"] == {"replicas": 0}
    assert put.query == {"fieldManager": "me"}
    assert patch.json() == {"spec": {"replicas": 1}}
    assert server.requests[-1].json() == body


async def test_refusals_are_typed():
    async with ScriptedServer() as server, client_of(server) as client:
        server.expect("GET", ONE, refuse(404, "NotFound", 'pods "web-0" not found'))
        with pytest.raises(NotFound, match='pods "web-0" not found'):
            await client.resource("v1/pods").get("web-0", namespace="default")


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (reply(body=b"<html>login", content_type="text/html"), "login page"),
        (reply(body=b'{"metadata": {"na'), "cut short"),
        (reply(body=b""), "an empty body"),
        (reply(body=b"[]"), "cannot be read as the object asked for"),
    ],
)
async def test_a_success_that_is_not_an_object_is_a_protocol_error(answer, told):
    async with ScriptedServer() as server, client_of(server) as client:
        server.expect("GET", ONE, answer)
        with pytest.raises(ProtocolError) as caught:
            await client.resource("v1/pods").get("web-0", namespace="default")
    assert told in str(caught.value)
    assert f"{server.url}{ONE}" in str(caught.value)


async def test_mistakes_are_reported_before_anything_is_sent():
    async with ScriptedServer() as server, client_of(server) as client:
        with pytest.raises(ValueError, match="not 'version/plural'"):
            client.resource("pods")
        for short in ("apps/deployments", "v1/pods/status", "apps/v1/deployments/scale", "v1/"):
            with pytest.raises(ValueError, match="not 'version/plural'"):
                client.resource(short)
        with pytest.raises(ValueError, match="lower-case plural"):
            client.resource("v1/Pod")
        with pytest.raises(ValueError, match="is not a DNS label"):
            client.resource("v1/pods", namespace="A")
        with pytest.raises(TypeError, match="Struct with a metadata field"):
            client.resource("v1/pods", str)
        pods = client.resource("v1/pods")
        with pytest.raises(ValueError, match="subresource 'Status'"):
            pods.subresource("Status")
        with pytest.raises(ValueError, match=r"'other' was asked for.*is 'default'"):
            await pods.create(pod(), namespace="other")
        with pytest.raises(ValueError, match="name is empty"):
            await pods.replace({"metadata": {"namespace": "default"}})
        bodies: tuple[Any, ...] = ({"data": {}}, [{"op": "remove"}])
        for bare in bodies:
            with pytest.raises(TypeError, match=r"as in MergePatch\(\{"):
                await pods.patch("web", bare)
    assert server.requests == []


async def test_creation_without_its_namespace_says_so_too():
    refused = refuse(405, "MethodNotAllowed", "the server does not allow this method")
    async with ScriptedServer() as server, client_of(server) as client:
        server.expect("POST", "/api/v1/pods", refused)
        with pytest.raises(MethodNotAllowed) as caught:
            await client.resource("v1/pods").create({"metadata": {"name": "a"}})
    assert "no namespace was given" in str(caught.value)


async def test_forgotten_namespace_is_named():
    missing = refuse(404, "NotFound", "the server could not find the requested resource")
    async with ScriptedServer() as server, client_of(server) as client:
        server.expect("GET", "/api/v1/pods/web-0", missing)
        with pytest.raises(NotFound) as caught:
            await client.resource("v1/pods").get("web-0")
        server.expect("GET", "/api/v1/nodes/n", refuse(404, "NotFound", details={"name": "n"}))
        with pytest.raises(NotFound) as plain:
            await client.resource("v1/nodes").get("n")
    assert str(caught.value) == (
        "the server could not find the requested resource: no namespace was given;"
        " if pods are namespaced, pass namespace="
    )
    assert "namespace" not in str(plain.value)


async def test_bound_resource_keeps_namespace_and_can_be_bound_again():
    async with ScriptedServer() as server, client_of(server) as client:
        everywhere = client.resource("v1/pods")
        bound = everywhere.within("default")
        assert (everywhere.namespace, bound.namespace) == ("", "default")
        assert repr(bound) == "<Resource v1/pods in default>"
        server.expect("GET", ONE, reply(pod()))
        await bound.get("web-0")
        server.expect("GET", "/api/v1/namespaces/b/pods/x", reply(pod("x", "b")))
        await bound.get("x", namespace="b")
        assert bound.gvr.resource == "pods"


# The seam to informers.


async def test_a_resource_is_what_reflectors_want():
    async with ScriptedServer() as server, client_of(server) as client:
        dicts: ListWatch[JsonObject] = client.resource("v1/pods")
        structs: ListWatch[Pod] = client.resource("v1/pods", Pod)
        assert dicts.supports_watch_list
        assert dicts.access.name(pod()) == "web-0"
        assert structs.access.name(Pod(metadata=ObjectMeta(name="x"))) == "x"


async def test_list_reads_a_page_with_its_token():
    async with ScriptedServer() as server, client_of(server) as client:
        server.expect("GET", PODS, reply(pod_list("a", "b", version="7", token="next")))
        pods = client.resource("v1/pods", Pod, namespace="default")
        page = await pods.list(ListOptions(resource_version="0", limit=500))
        (request,) = server.requests
    assert [item.metadata.name for item in page.items] == ["a", "b"]
    assert (page.resource_version, page.continue_token) == ("7", "next")
    assert request.query == {"resourceVersion": "0", "limit": "500"}
    assert request.headers["accept"] == "application/json"
    assert request.headers["user-agent"].startswith("kubeloop/")


async def test_watch_delivers_events_until_closed():
    async with ScriptedServer() as server, client_of(server) as client:
        script = server.expect_watch(PODS, query={"resourceVersion": "7"})
        pods = client.resource("v1/pods", namespace="default")
        stream = await pods.watch(WatchOptions(resource_version="7", timeout_seconds=300))
        await script.event("ADDED", pod("a"))
        (event,) = await stream.read()
        await stream.close()
        await script.client_left()
    assert (event.type, event.object["metadata"]["name"]) == ("ADDED", "a")


@pytest.mark.spec("R40")
@pytest.mark.parametrize("what", ["list", "watch"])
async def test_lists_and_watches_of_informers_are_never_retried_here(what):
    busy = refuse(429, "TooManyRequests", headers={"Retry-After": "1"})
    async with ScriptedServer() as server, client_of(server) as client:
        server.expect("GET", "/api/v1/pods", busy)
        pods = client.resource("v1/pods")
        with pytest.raises(TooManyRequests) as caught:
            await (pods.list(ListOptions()) if what == "list" else pods.watch(WatchOptions()))
        assert caught.value.retry_after == 1.0
        assert len(server.requests) == 1


async def test_a_plain_text_429_of_a_watch_is_recognised():
    text = reply(
        status=429,
        body=b"Too many requests, please try again later.\n",
        content_type="text/plain; charset=utf-8",
        headers={"Retry-After": "1"},
    )
    async with ScriptedServer() as server, client_of(server) as client:
        server.expect("GET", "/api/v1/pods", text)
        with pytest.raises(TooManyRequests):
            await client.resource("v1/pods").watch(WatchOptions())


@pytest.mark.parametrize("what", ["list", "watch"])
async def test_lists_and_watches_renew_a_refused_login(what):
    credentials = RenewableToken("old", "new")
    async with ScriptedServer() as server, client_of(server, credentials) as client:
        server.expect("GET", "/api/v1/pods", refuse(401, "Unauthorized"), reply(pod_list()))
        pods = client.resource("v1/pods")
        if what == "list":
            await pods.list(ListOptions())
        else:
            await (await pods.watch(WatchOptions())).close()
        seen = [request.headers["authorization"] for request in server.requests]
    assert seen == ["Bearer old", "Bearer new"]


async def test_every_impersonated_group_reaches_the_server_on_lists_too():
    acting = Impersonation(user="jane", groups=("a", "b", "c"), extra={"k": ("1", "2")})
    async with ScriptedServer() as server, client_of(server, impersonate=acting) as client:
        server.expect("GET", "/api/v1/pods", reply(pod_list()))
        await client.resource("v1/pods").list(ListOptions())
        (request,) = server.requests
    assert request.header_values("impersonate-user") == ["jane"]
    assert sorted(request.header_values("impersonate-group")) == ["a", "b", "c"]
    assert sorted(request.header_values("impersonate-extra-k")) == ["1", "2"]


async def test_an_expired_version_is_gone_on_list_and_on_watch():
    async with ScriptedServer() as server, client_of(server) as client:
        server.expect("GET", "/api/v1/pods", refuse(410, "Expired"), refuse(410, "Gone"))
        pods = client.resource("v1/pods")
        with pytest.raises(Gone):
            await pods.list(ListOptions(resource_version="1"))
        with pytest.raises(Gone):
            await pods.watch(WatchOptions(resource_version="1"))


async def test_a_cancelled_list_closes_its_connection():
    left = asyncio.Event()

    async def forever(exchange):
        await exchange.start()
        await exchange.client_left()
        left.set()

    async with ScriptedServer() as server, client_of(server) as client:
        server.expect("GET", "/api/v1/pods", forever)
        task = asyncio.ensure_future(client.resource("v1/pods").list(ListOptions()))
        await server.arrived(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(left.wait(), 5)


# Retries, through the whole client.


async def test_a_creation_whose_connection_dies_is_sent_once():
    async with ScriptedServer() as server, client_of(server) as client:
        server.expect("POST", PODS, drop)
        with pytest.raises(Exception, match="before an answer came"):
            await client.resource("v1/pods").create(pod())
        assert len(server.requests) == 1


async def test_a_read_whose_connection_dies_is_sent_again():
    async with ScriptedServer() as server, client_of(server) as client:
        server.expect("GET", ONE, drop, drop, reply(pod()))
        assert await client.resource("v1/pods").get("web-0", namespace="default") == pod()


async def test_a_read_that_is_cut_inside_the_answer_is_not():
    cut = raw(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{")
    async with ScriptedServer() as server, client_of(server) as client:
        server.expect("GET", ONE, cut)
        with pytest.raises(Exception, match="in the middle of the answer"):
            await client.resource("v1/pods").get("web-0", namespace="default")


async def test_a_server_that_was_busy_gets_the_creation_again():
    now = refuse(429, "TooManyRequests", headers={"Retry-After": "0"})
    async with ScriptedServer() as server, client_of(server) as client:
        server.expect("POST", PODS, now, reply(pod(), status=201))
        assert await client.resource("v1/pods").create(pod()) == pod()


async def test_a_refused_token_is_renewed_once():
    credentials = RenewableToken("old", "new")
    async with ScriptedServer() as server, client_of(server, credentials) as client:
        server.serve("GET", ONE, refuse(401, "Unauthorized"))
        with pytest.raises(Unauthorized):
            await client.resource("v1/pods").get("web-0", namespace="default")
        assert len(server.requests) == 2


async def test_errors_share_one_base():
    async with ScriptedServer() as server, client_of(server) as client:
        resource: Resource[JsonObject] = client.resource("v1/pods")
        server.expect("GET", ONE, refuse(418, "Teapot"))
        with pytest.raises(ApiError) as caught:
            await resource.get("web-0", namespace="default")
    assert caught.value.code == 418


@pytest.mark.spec("F7")
async def test_metadata_alone_is_asked_for_by_projection():
    meta = {"name": "web", "namespace": "default", "resourceVersion": "7"}
    partial = {"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata", "metadata": meta}
    page = {
        "kind": "PartialObjectMetadataList",
        "metadata": {"resourceVersion": "7"},
        "items": [partial],
    }
    async with ScriptedServer() as server, client_of(server) as client:
        server.expect("GET", "/api/v1/pods", reply(page))
        server.expect("GET", "/api/v1/namespaces/default/pods/web", reply(partial))
        watch = server.expect_watch("/api/v1/pods")
        pods = client.resource("v1/pods", PartialObjectMetadata)

        assert [pod.metadata.name for pod in (await pods.list(ListOptions())).items] == ["web"]
        assert (await pods.get("web", namespace="default")).metadata.resource_version == "7"
        stream = await pods.watch(WatchOptions())
        await watch.event("ADDED", partial)
        (event,) = await stream.read()
        assert event.object.metadata.name == "web"
        await stream.close()

    wanted = [request.headers["accept"].split(",")[0] for request in server.requests]
    assert wanted == [
        "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1",
        "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1",
        "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1",
    ]


async def test_body_of_megabytes_is_sent_with_length_and_without_warning():
    data = {"blob": "x" * 1_500_000}
    config_map = {"metadata": {"name": "big", "namespace": "default"}, "data": data}
    async with ScriptedServer() as server, client_of(server) as client:
        server.expect(
            "POST", "/api/v1/namespaces/default/configmaps", reply(config_map, status=201)
        )
        await client.resource("v1/configmaps").create(config_map)
    (request,) = server.requests
    assert request.json()["data"] == data
    assert request.headers["content-length"] == str(len(request.body))
