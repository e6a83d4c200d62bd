"""Definitions from Structs: what the API server gets, and what it then refuses."""

from __future__ import annotations

import datetime as dt
import enum
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import pytest
from msgspec import Meta

from devkube.testing import start_cluster
from kubeloop.client import Invalid
from kubeloop.crd import (
    Column,
    custom_resource_definition,
    map_by,
    type_schema,
    validations,
)
from kubeloop.objects.conditions import Condition
from kubeloop.objects.meta import ObjectMeta
from kubeloop.testing.fake_client import FakeClient


class Colour(enum.Enum):
    RED = "red"


class Port(msgspec.Struct):
    """One port."""

    name: str
    number: Annotated[int, Meta(ge=1, le=65535)]


class Spec(msgspec.Struct, rename="camel"):
    """What a user writes.

    Not part of the description.
    """

    text: Annotated[str, Meta(min_length=1, max_length=1000, description="What the page says.")]
    ports: Annotated[list[Port], map_by("name"), Meta(max_length=8)] = msgspec.field(
        default_factory=list
    )
    max_size: int | str = "1Mi"
    labels: dict[str, str] | None = None
    anything: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET
    colour: Colour = Colour.RED
    mode: Literal["Fast", "Slow"] = "Fast"
    since: dt.datetime | None = None
    big: int = 0
    share: Annotated[float, Meta(ge=0, le=1)] = 0.5


class Status(msgspec.Struct, rename="camel", omit_defaults=True):
    """What we say about it."""

    conditions: tuple[Condition, ...] = ()


class Website(msgspec.Struct, rename="camel"):
    """A page that is published."""

    metadata: ObjectMeta
    spec: Annotated[Spec, validations(("self.text != 'no'", "say yes"))]
    status: Status = msgspec.field(default_factory=Status)
    api_version: str = "example.com/v1"
    kind: str = "Website"


def definition() -> dict[str, Any]:
    columns = (
        Column("Text", ".spec.text"),
        Column("Age", ".metadata.creationTimestamp", "date", 1),
    )
    return custom_resource_definition(
        Website, "example.com/v1/websites", columns=columns, short_names=("ws",)
    )


def test_definition_has_names_columns_and_status() -> None:
    made = definition()
    assert made["metadata"]["name"] == "websites.example.com"
    assert made["spec"]["names"] == {
        "kind": "Website", "listKind": "WebsiteList", "plural": "websites", "singular": "website",
        "shortNames": ["ws"],
    }  # fmt: skip
    (version,) = made["spec"]["versions"]
    assert version["subresources"] == {"status": {}}
    assert version["additionalPrinterColumns"] == [
        {"name": "Text", "type": "string", "jsonPath": ".spec.text"},
        {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp", "priority": 1},
    ]


def test_schema_says_what_the_types_say() -> None:
    (version,) = definition()["spec"]["versions"]
    schema = version["schema"]["openAPIV3Schema"]
    assert schema["required"] == ["spec"]
    assert schema["properties"]["metadata"] == {"type": "object"}
    spec = schema["properties"]["spec"]
    assert spec["description"] == "What a user writes."
    assert spec["x-kubernetes-validations"] == [{"rule": "self.text != 'no'", "message": "say yes"}]
    assert spec["required"] == ["text"]
    fields = spec["properties"]
    assert fields["text"] == {
        "type": "string", "minLength": 1, "maxLength": 1000, "description": "What the page says.",
    }  # fmt: skip
    assert fields["ports"]["x-kubernetes-list-map-keys"] == ["name"]
    assert fields["ports"]["maxItems"] == 8
    number = fields["ports"]["items"]["properties"]["number"]
    assert number == {"type": "integer", "format": "int32", "minimum": 1, "maximum": 65535}
    assert fields["maxSize"] == {"x-kubernetes-int-or-string": True, "default": "1Mi"}
    assert fields["labels"] == {"type": "object", "additionalProperties": {"type": "string"}}
    assert fields["anything"]["x-kubernetes-preserve-unknown-fields"]
    assert fields["mode"] == {"type": "string", "enum": ["Fast", "Slow"], "default": "Fast"}
    assert fields["since"] == {"type": "string", "format": "date-time"}
    assert fields["big"]["format"] == "int64"
    conditions = schema["properties"]["status"]["properties"]["conditions"]
    assert conditions["x-kubernetes-list-map-keys"] == ["type"]


class Node(msgspec.Struct):
    """A tree."""

    left: Node | None = None


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        (int | list[int], "no unions but int"),
        (bytes, "cannot describe"),
        (dict[int, str], "cannot describe dict: use a string"),
        (set[str], "cannot describe set: use a string"),
        (Node, r"it\.left: a structural schema cannot contain itself"),
    ],
)
def test_what_no_structural_schema_can_say_is_refused(kind: Any, says: str) -> None:
    with pytest.raises(TypeError, match=says):
        type_schema(msgspec.inspect.type_info(kind))


async def test_server_holds_objects_to_it(tmp_path: Path) -> None:
    async with start_cluster(tmp_path) as cluster:
        client = cluster.client
        await client.apply(definition(), manager="test")
        site = Website(ObjectMeta(name="a", namespace="default"), Spec(text="hi"))
        made = await client.resource("example.com/v1/websites", Website).create(site)
        assert (made.spec.text, made.spec.max_size, made.spec.mode) == ("hi", "1Mi", "Fast")
        wrong: Any = {"metadata": {"name": "b"}, "spec": {"text": "", "ports": [{"number": 0}]}}
        with pytest.raises(Invalid) as caught:
            await client.resource("example.com/v1/websites").create(wrong, namespace="default")
    fields = {cause.field for cause in caught.value.causes}
    assert {"spec.text", "spec.ports[0].name", "spec.ports[0].number"} <= fields


async def test_fake_client_serves_what_is_defined() -> None:
    site = Website(ObjectMeta(name="a"), Spec(text="hi"))
    client = FakeClient(definition(), site)
    found = await client.resource("example.com/v1/websites", Website).get("a", namespace="default")
    assert found.spec == site.spec


def test_columns_that_are_not_columns_are_refused() -> None:
    with pytest.raises(TypeError, match=r"columns has 'Ready': write Column\(name, path\)"):
        custom_resource_definition(Website, "x.io/v1/websites", columns=("Ready",))  # type: ignore[arg-type]


def test_a_generation_that_clients_cannot_read_is_refused() -> None:
    status = msgspec.defstruct("Status", [("observed_generation", int, 0)], frozen=True)
    kind = msgspec.defstruct("Kind", [("metadata", ObjectMeta), ("status", status, status())])
    with pytest.raises(TypeError, match=r'Kind\.status: write rename="camel"'):
        custom_resource_definition(kind, "x.io/v1/kinds")
