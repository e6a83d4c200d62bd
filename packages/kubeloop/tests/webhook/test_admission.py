"""Functions that admit requests: what they are asked, what is answered, what the API server is sent."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import jsonpatch
import msgspec
import pytest
from tests.webhook.reviews import patch_of, review

from kubeloop.http.framing import parse_request_head
from kubeloop.http.server import HttpError, Request
from kubeloop.objects.list_watch import DecodeError
from kubeloop.objects.meta import JsonObject, ObjectMeta
from kubeloop.webhook import Admission, AdmissionRequest, Denied, UserInfo
from kubeloop.webhook.review import ReviewError


class Spec(msgspec.Struct):
    text: str = ""
    replicas: int = 1


class Site(msgspec.Struct):
    metadata: ObjectMeta
    spec: Spec = msgspec.field(default_factory=Spec)


PATH = "example.com/v1/sites"
SITE: JsonObject = {
    "apiVersion": PATH.rpartition("/")[0],
    "kind": "Site",
    "metadata": {"name": "a", "namespace": "shop", "managedFields": [{"manager": "m"}]},
    "spec": {"text": "hi", "unknown": [1, {"x": None}]},
}


@pytest.fixture
def admission() -> Admission:
    return Admission(service="sites")


def asked(admission: Admission, **options: Any) -> list[AdmissionRequest[Site]]:
    """Register a function that admits everything; returns what it was asked."""
    requests: list[AdmissionRequest[Site]] = []

    @admission.validating(PATH, Site, **options)
    async def check(site: Site, request: AdmissionRequest[Site]) -> None:
        requests.append(request)
        if site.spec.text == "bad":
            request.warn("think of better words")
            request.audit_annotations["words"] = "bad"
            raise Denied("spec.text is bad")
        if site.spec.text == "bug":
            raise KeyError("bug")

    return requests


async def answered(admission: Admission, body: bytes, path: str = "/check") -> JsonObject:
    answer = await admission.review(path, body)
    assert (answer["apiVersion"], answer["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")
    response: JsonObject = answer["response"]
    assert response["uid"] == "u-1"
    return response


async def test_a_good_object_is_admitted_and_the_request_is_typed(admission: Admission) -> None:
    requests = asked(admission)
    old = SITE | {"spec": {"text": "before"}}
    body = review(SITE, oldObject=old, operation="UPDATE", namespace="shop", dryRun=True)
    assert await answered(admission, body) == {"uid": "u-1", "allowed": True}
    (request,) = requests
    assert (request.operation, request.namespace, request.dry_run) == ("UPDATE", "shop", True)
    assert request.user == UserInfo("ann", groups=["devs"])
    assert request.old is not None
    assert request.old.spec.text == "before"


async def test_a_denial_has_its_reason_warnings_and_audit_annotations(admission: Admission) -> None:
    asked(admission)
    response = await answered(admission, review(SITE | {"spec": {"text": "bad"}}))
    assert response == {
        "uid": "u-1",
        "allowed": False,
        "status": {"code": 403, "reason": "Forbidden", "message": "spec.text is bad"},
        "warnings": ["think of better words"],
        "auditAnnotations": {"words": "bad"},
    }


async def test_an_object_of_another_shape_is_denied_with_the_place(admission: Admission) -> None:
    asked(admission)
    response = await answered(admission, review(SITE | {"spec": {"replicas": "three"}}))
    assert response["status"]["code"] == 422
    assert "$.spec.replicas" in response["status"]["message"]


async def test_an_old_object_of_another_shape_keeps_no_good_one_out(admission: Admission) -> None:
    requests = asked(admission)
    body = review(SITE, oldObject=SITE | {"spec": {"replicas": "three"}}, operation="UPDATE")
    assert (await answered(admission, body))["allowed"] is True
    with pytest.raises(DecodeError):
        _ = requests[0].old


async def test_the_object_of_a_delete_is_the_one_that_goes(admission: Admission) -> None:
    requests = asked(admission, operations=["DELETE"])
    gone = SITE | {"spec": {"text": "bad"}}
    response = await answered(admission, review(None, oldObject=gone, operation="DELETE"))
    assert response["allowed"] is False
    assert requests[0].old is not None


async def test_a_patch_has_the_change_and_leaves_unknown_fields(admission: Admission) -> None:
    @admission.mutating(PATH, Site)
    async def fill_in(site: Site, request: AdmissionRequest[Site]) -> None:
        site.spec.replicas = 3
        site.metadata.labels = {"a/b~c": "1"}

    answer = await admission.review("/fill-in", review(SITE))
    assert answer["response"]["patchType"] == "JSONPatch"
    patched = jsonpatch.apply_patch(SITE, patch_of(answer))
    assert patched["spec"] == SITE["spec"] | {"replicas": 3}
    assert patched["metadata"] == SITE["metadata"] | {"labels": {"a/b~c": "1"}}


async def test_a_function_may_return_the_changed_object(admission: Admission) -> None:
    @admission.mutating("v1/configmaps")
    async def label(obj: JsonObject, request: AdmissionRequest[JsonObject]) -> JsonObject:
        return obj | {"data": {"by": request.user.username}}

    answer = await admission.review("/label", review({"metadata": {}}, path="v1/configmaps"))
    assert patch_of(answer) == [{"op": "add", "path": "/data", "value": {"by": "ann"}}]


async def test_without_a_change_there_is_no_patch_and_a_check_cannot_change(
    admission: Admission,
) -> None:
    @admission.mutating(PATH, Site)
    async def look(site: Site, request: AdmissionRequest[Site]) -> None:
        """Leave it."""

    @admission.validating(PATH, Site)
    async def check(site: Site, request: AdmissionRequest[Site]) -> None:
        site.spec.text = "mine"

    for path in ("/look", "/check"):
        assert await answered(admission, review(SITE), path) == {"uid": "u-1", "allowed": True}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "not an AdmissionReview"),
        (b"{", "not an AdmissionReview"),
        (b"[]", "not an AdmissionReview"),
        (b"\xff\xfe", "not an AdmissionReview"),
        (b"[" * 200_000, "not an AdmissionReview"),
        (review(SITE).replace(b"k8s.io/v1", b"k8s.io/v1beta1"), "admissionReviewVersions"),
        (b'{"apiVersion":"v1","kind":"Pod"}', "v1 Pod is not an admission.k8s.io/v1"),
        (
            b'{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview"}',
            "Expected `object`, got `null`",
        ),
        (review(SITE, operation="EAT"), "operation"),
        (review({}, path="v1/pods"), "v1/pods was sent to check.sites.example.com: correct the"),
        (review(SITE, subResource="status"), "example.com/v1/sites status was sent to check"),
    ],
)
async def test_what_is_not_a_review_for_it_is_refused_by_name(
    admission: Admission, body: bytes, message: str
) -> None:
    requests = asked(admission)
    with pytest.raises(ReviewError, match=message):
        await admission.review("/check", body)
    assert requests == []


def http_request(body: bytes, target: str = "/check", method: str = "POST") -> Request:
    head = f"{method} {target} HTTP/1.1\r\nHost: x\r\n".encode()
    return Request(parse_request_head(head), body)


async def test_errors_are_left_to_the_failure_policy(admission: Admission) -> None:
    asked(admission)
    served = await admission.serve(http_request(review(SITE), "/check?timeout=10s"))
    assert served.content_type == "application/json"
    assert isinstance(served.body, bytes)
    assert json.loads(served.body)["response"]["allowed"] is True
    for request, status in (
        (http_request(b"{"), 400),
        (http_request(review(SITE), "/other"), 400),
        (http_request(b"", method="GET"), 405),
    ):
        with pytest.raises(HttpError) as refused:
            await admission.serve(request)
        assert refused.value.status == status
    with pytest.raises(KeyError):  # the server answers 500
        await admission.serve(http_request(review(SITE | {"spec": {"text": "bug"}})))


@pytest.mark.virtual_time
async def test_a_function_has_as_long_as_the_api_server_waits(admission: Admission) -> None:
    loop = asyncio.get_running_loop()

    @admission.validating(PATH, Site)
    async def check(site: Site, request: AdmissionRequest[Site]) -> None:
        await asyncio.sleep(3600)

    for target, seconds in (("/check?timeout=7s", 7), ("/check", 30), ("/check?timeout=99s", 30)):
        began = loop.time()
        with pytest.raises(HttpError) as refused:
            await admission.serve(http_request(review(SITE), target))
        assert refused.value.status == 504
        assert loop.time() - began == pytest.approx(seconds)


def test_configurations_lead_to_the_service() -> None:
    admission = Admission(service="sites")
    asked(
        admission,
        operations=["CREATE"],
        namespaces={"matchLabels": {"a": "b"}},
        objects={"matchLabels": {"c": "d"}},
        conditions={"not-system": "!request.userInfo.username.startsWith('system:')"},
        failure_policy="Ignore",
        timeout=3,
        side_effects=True,
    )

    @admission.mutating("apps/v1/deployments", subresource="scale", again=True)
    async def limit(scale: JsonObject, request: AdmissionRequest[JsonObject]) -> None: ...

    validating, mutating = admission.configurations("shop", b"PEM")
    assert (validating["metadata"], mutating["metadata"]) == ({"name": "sites"}, {"name": "sites"})
    service = {"namespace": "shop", "name": "sites", "port": 443}
    assert validating["webhooks"] == [
        {
            "name": "check.sites.example.com",
            "rules": [
                {
                    "apiGroups": ["example.com"],
                    "apiVersions": ["v1"],
                    "resources": ["sites"],
                    "operations": ["CREATE"],
                }
            ],
            "failurePolicy": "Ignore",
            "sideEffects": "NoneOnDryRun",
            "timeoutSeconds": 3,
            "admissionReviewVersions": ["v1"],
            "namespaceSelector": {"matchLabels": {"a": "b"}},
            "objectSelector": {"matchLabels": {"c": "d"}},
            "matchConditions": [
                {
                    "name": "not-system",
                    "expression": "!request.userInfo.username.startsWith('system:')",
                }
            ],
            "clientConfig": {"service": service | {"path": "/check"}, "caBundle": "UEVN"},
        }
    ]
    (webhook,) = mutating["webhooks"]
    assert webhook["rules"][0]["resources"] == ["deployments/scale"]
    assert webhook["reinvocationPolicy"] == "IfNeeded"
    assert admission.hosts("shop") == ["sites.shop.svc", "sites.shop.svc.cluster.local"]


def test_a_program_outside_of_the_cluster_has_a_url() -> None:
    admission = Admission("sites", url="https://10.0.0.1:9443/")
    asked(admission)
    (webhook,) = admission.configurations("shop")[0]["webhooks"]
    assert webhook["clientConfig"] == {"url": "https://10.0.0.1:9443/check"}
    assert admission.hosts("shop") == ["10.0.0.1"]


@pytest.mark.parametrize("options", [{}, {"service": "a", "url": "https://a"}, {"url": "http://a"}])
def test_the_way_to_it_must_be_given_once_and_be_https(options: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"service= or url=|https only"):
        Admission(**options)  # type: ignore[arg-type]


def test_a_second_function_of_one_name_and_an_odd_timeout_are_refused() -> None:
    admission = Admission(service="sites")
    asked(admission)
    with pytest.raises(ValueError, match="already"):
        asked(admission)
    with pytest.raises(ValueError, match="1 to 30"):
        asked(admission, timeout=60)
