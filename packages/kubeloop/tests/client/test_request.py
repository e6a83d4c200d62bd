"""Requests as values: paths, quoting, queries, and what is refused before it is sent."""

from __future__ import annotations

from urllib.parse import parse_qsl, unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubeloop.client import request as requests
from kubeloop.client.request import APPLY, Request, ResourcePath, group_path, write_query
from kubeloop.objects.gvk import GroupVersion, GroupVersionResource

PODS = GroupVersionResource("", "v1", "pods")
DEPLOYMENTS = GroupVersionResource("apps", "v1", "deployments")


@pytest.mark.parametrize(
    ("place", "path"),
    [
        (ResourcePath(PODS), "/api/v1/pods"),
        (ResourcePath(PODS, "kube-system"), "/api/v1/namespaces/kube-system/pods"),
        (ResourcePath(DEPLOYMENTS), "/apis/apps/v1/deployments"),
        (ResourcePath(DEPLOYMENTS, "a"), "/apis/apps/v1/namespaces/a/deployments"),
        (ResourcePath(GroupVersionResource("", "v1", "namespaces")), "/api/v1/namespaces"),
    ],
)
def test_collections_are_where_the_api_conventions_put_them(place, path):
    assert place.collection == path


def test_an_object_and_its_parts_are_below_their_collection():
    assert ResourcePath(PODS, "a").item("web-0") == "/api/v1/namespaces/a/pods/web-0"
    assert ResourcePath(DEPLOYMENTS, "a").item("web", "scale").endswith("/deployments/web/scale")
    nested = ResourcePath(GroupVersionResource("", "v1", "nodes")).item("n", "proxy/metrics")
    assert nested == "/api/v1/nodes/n/proxy/metrics"


def test_the_core_group_is_served_apart():
    assert group_path(GroupVersion("", "v1")) == "/api/v1"
    assert group_path(GroupVersion("apps", "v1")) == "/apis/apps/v1"


def test_rbac_names_keep_colons_and_others_are_escaped():
    roles = ResourcePath(GroupVersionResource("rbac.authorization.k8s.io", "v1", "clusterroles"))
    assert roles.item("system:node").endswith("/clusterroles/system:node")
    assert roles.item("a b?c#d").endswith("/clusterroles/a%20b%3Fc%23d")
    assert roles.item("grün").endswith("/clusterroles/gr%C3%BCn")


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "default/web", "50%", "a\nb", "\x7f"])
def test_what_cannot_be_name_is_refused_before_it_is_sent(name):
    with pytest.raises(ValueError, match="pods: ") as caught:
        ResourcePath(PODS, "default").item(name)
    assert not name or repr(name) in str(caught.value)


@pytest.mark.parametrize("namespace", ["Default", "a/b", "a.b", "-a", "a" * 64, "ä"])
def test_what_cannot_be_a_namespace_is_refused(namespace):
    with pytest.raises(ValueError, match="is not a DNS label"):
        _ = ResourcePath(PODS, namespace).collection


def test_a_kind_in_the_place_of_a_plural_gets_advice():
    with pytest.raises(
        ValueError, match=r"'Pod' is not .* expected the lower-case plural.*resource_for"
    ):
        _ = ResourcePath(GroupVersionResource("", "v1", "Pod")).collection


def test_an_odd_subresource_is_refused():
    with pytest.raises(ValueError, match="subresource 'Scale'"):
        ResourcePath(PODS, "a").item("x", "Scale")


@given(
    st.text(min_size=1).filter(lambda name: not set(name) & set("/%") and name not in {".", ".."})
)
def test_every_accepted_name_comes_back_from_its_path(name):
    try:
        path = ResourcePath(PODS).item(name)
    except ValueError:
        assert any(ord(char) < 32 or ord(char) == 127 for char in name)
        return
    *_, last = path.split("/")
    assert path.isascii()
    assert unquote(last) == name


@given(st.dictionaries(st.sampled_from(["labelSelector", "continue"]), st.text(min_size=1)))
def test_a_query_survives_its_encoding(query):
    request = requests.get("/api/v1/pods", query)
    _, _, encoded = request.target.partition("?")
    assert dict(parse_qsl(encoded, keep_blank_values=True)) == query
    assert request.target.isascii()
    assert " " not in request.target


def test_empty_parameters_are_left_out():
    assert requests.get("/x", {"a": "", "b": "1"}).target == "/x?b=1"
    assert requests.get("/x", {"a": ""}).target == "/x"


@pytest.mark.parametrize(
    ("method", "content_type", "repeatable"),
    [
        ("GET", "", True),
        ("PUT", "application/json", True),
        ("DELETE", "application/json", True),
        ("PATCH", APPLY, True),
        ("POST", "application/json", False),
        ("PATCH", "application/json-patch+json", False),
        ("PATCH", "application/merge-patch+json", False),
    ],
)
def test_only_idempotent_requests_are_repeatable(method, content_type, repeatable):
    assert Request(method=method, path="/x", content_type=content_type).repeatable is repeatable


def test_write_parameters_have_the_servers_names():
    assert write_query(dry_run=True, field_manager="me", field_validation="Strict", force=True) == {
        "dryRun": "All",
        "fieldManager": "me",
        "fieldValidation": "Strict",
        "force": "true",
    }
    assert not any(write_query().values())


def test_wrong_write_parameters_are_refused_with_their_value():
    with pytest.raises(ValueError, match="'strict' is not one of 'Strict'"):
        write_query(field_validation="strict")
    with pytest.raises(ValueError, match="at most 128 characters"):
        write_query(field_manager="x" * 129)
