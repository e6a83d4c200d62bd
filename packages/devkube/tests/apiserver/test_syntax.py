"""Names, selectors, request paths, types, times, JSON paths: the small grammars."""

from __future__ import annotations

import contextlib
import datetime as dt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devkube.apiserver.calls import read_attributes
from devkube.apiserver.registry.list_watch import parse_fields, parse_labels
from devkube.apiserver.schema.conform import Conformer, FieldDecodeError, duplicate_fields
from devkube.apiserver.schema.types import BuiltinTypes
from devkube.apiserver.status import StatusError
from devkube.apiserver.tables import printers
from devkube.apiserver.tables.cells import age, duration
from devkube.apiserver.validation import names

TYPES = BuiltinTypes()
CONTAINER = TYPES.type("io.k8s.api.core.v1.Container")


@pytest.mark.parametrize(
    ("method", "path", "query", "expected"),
    [
        ("GET", "/api/v1/pods", {}, ("list", "", "v1", "pods", "", "", "")),
        ("GET", "/api/v1/namespaces/a/pods/b", {}, ("get", "", "v1", "pods", "", "a", "b")),
        ("GET", "/api/v1/pods", {"watch": "1"}, ("watch", "", "v1", "pods", "", "", "")),
        ("GET", "/api/v1/namespaces/a", {}, ("get", "", "v1", "namespaces", "", "a", "a")),
        (
            "PUT",
            "/api/v1/namespaces/a/finalize",
            {},
            ("update", "", "v1", "namespaces", "finalize", "a", "a"),
        ),
        (
            "PATCH",
            "/apis/apps/v1/namespaces/a/deployments/b/scale",
            {},
            ("patch", "apps", "v1", "deployments", "scale", "a", "b"),
        ),
        (
            "DELETE",
            "/apis/g.io/v2/things",
            {},
            ("deletecollection", "g.io", "v2", "things", "", "", ""),
        ),
        (
            "POST",
            "/api/v1/namespaces/a/pods",
            {"watch": "0"},
            ("create", "", "v1", "pods", "", "a", ""),
        ),
    ],
)
def test_a_request_is_read_off_its_path(method, path, query, expected):
    found = read_attributes(method, path, query)
    assert (
        found.verb,
        found.group,
        found.version,
        found.resource,
        found.subresource,
        found.namespace,
        found.name,
    ) == expected


@pytest.mark.parametrize(
    "path", ["/", "/api", "/apis", "/apis/apps", "/apis/apps/v1", "/healthz", "/openapi/v3"]
)
def test_other_paths_have_no_resource(path):
    assert not read_attributes("GET", path, {}).is_resource


@given(st.text(max_size=60))
def test_any_selector_parses_or_is_refused(text):
    for parse in (parse_labels, lambda found: parse_fields(found, ("metadata.name",))):
        with contextlib.suppress(StatusError):
            parse(text)


@pytest.mark.parametrize(
    ("selector", "labels", "matches"),
    [
        ("a=b", {"a": "b"}, True),
        ("a==b,c!=d", {"a": "b"}, True),
        ("a in (x,y)", {"a": "z"}, False),
        ("a notin (x,y)", {}, True),
        ("a,!b", {"a": "", "b": ""}, False),
        ("a>5", {"a": "7"}, True),
        ("a<5", {"a": "x"}, False),
        ("a=", {"a": ""}, True),
        ("example.com/x=y", {"example.com/x": "y"}, True),
    ],
)
def test_label_selectors_mean_what_they_say(selector, labels, matches):
    assert parse_labels(selector).matches(labels) is matches


def test_names_have_their_grammar():
    assert not names.dns_subdomain("a.b-c.d")
    assert names.dns_subdomain("A")
    assert names.dns_label("a.b")
    assert names.dns_label("x" * 64)
    assert names.path_segment("a/b")
    assert not names.path_segment("system:node")
    assert not names.qualified_name("example.com/Name")
    assert names.qualified_name("/x")
    assert not names.label_value("")


def test_decoding_drops_nulls_and_names_unknown_fields():
    conformer = Conformer()
    value: dict[str, object] = {
        "name": "a",
        "image": None,
        "ports": [{"containerPort": 1, "foo": 2}],
        "bar": {},
    }
    assert conformer.conform(value, CONTAINER) == {"name": "a", "ports": [{"containerPort": 1}]}
    assert conformer.unknown == ["ports[0].foo", "bar"]


@pytest.mark.parametrize(
    "value",
    [
        {"name": 1},
        {"ports": {}},
        {"ports": [{"containerPort": "x"}]},
        {"ports": [{"containerPort": 2**31}]},
        {"resources": {"limits": {"cpu": "many"}}},
        {"tty": "yes"},
        [],
    ],
)
def test_decoding_refuses_wrong_types(value):
    with pytest.raises(FieldDecodeError):
        Conformer().conform(value, CONTAINER)


def test_repeated_fields_are_found_at_their_paths():
    assert duplicate_fields(b'{"a":1,"a":2,"b":[{"c":1,"c":2}]}') == ["a", "b[0].c"]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (119, "119s"),
        (120, "2m"),
        (185, "3m5s"),
        (3600, "60m"),
        (4 * 3600 + 600, "4h10m"),
        (10 * 3600, "10h"),
        (3 * 86400 + 7200, "3d2h"),
        (100 * 86400, "100d"),
        (3 * 365 * 86400, "3y"),
        (-5, "<invalid>"),
    ],
)
def test_ages_are_short(seconds, text):
    assert duration(seconds) == text
    now = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
    assert age("nonsense", now) == "<unknown>"


def test_json_paths_find_what_columns_ask_for():
    obj = {
        "a": {
            "b.c": 1,
            "list": [{"type": "Ready", "status": "True"}, {"type": "Other", "status": "False"}],
        }
    }
    assert printers.first_match(printers.parse_path(".a.list[1].type"), obj) == "Other"
    assert (
        printers.first_match(printers.parse_path('.a.list[?(@.type=="Ready")].status'), obj)
        == "True"
    )
    assert printers.first_match(printers.parse_path(r".a.b\.c"), obj) == 1
    assert printers.find_matches(printers.parse_path(".a.list[*].type"), obj) == ["Ready", "Other"]
    assert printers.first_match(printers.parse_path(".nope[0].x"), obj) is None
    with pytest.raises(ValueError, match="not a JSON path"):
        printers.parse_path(".a[")
