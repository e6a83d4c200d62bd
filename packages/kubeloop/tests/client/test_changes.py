"""Changes by read, modify and write: conflicts are tried again, unknown fields are kept."""

from __future__ import annotations

import msgspec
import pytest

from kubeloop.client import AlreadyExists, ApplyConflict, Conflict, can_i, retry_on_conflict
from kubeloop.client.changes import carry_over
from kubeloop.client.request import Request
from kubeloop.objects.meta import JsonObject, ObjectMeta
from kubeloop.testing.fake_client import FakeClient
from kubeloop.testing.fake_errors import api_error

pytestmark = pytest.mark.virtual_time


class Container(msgspec.Struct, omit_defaults=True):
    name: str
    image: str = ""


class Spec(msgspec.Struct, omit_defaults=True):
    containers: list[Container] = msgspec.field(default_factory=list)
    replicas: int | None = None


class Workload(msgspec.Struct, omit_defaults=True):
    metadata: ObjectMeta
    spec: Spec = msgspec.field(default_factory=Spec)


def workload() -> JsonObject:
    containers = [
        {"name": "app", "image": "app:1", "newField": {"deep": 1}},
        {"name": "side", "image": "side:1", "newField": 2},
    ]
    spec = {"replicas": 3, "containers": containers, "unknown": "kept"}
    meta = {"name": "web", "namespace": "default"}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": meta, "spec": spec}


async def test_fields_that_the_struct_does_not_name_survive_also_in_lists() -> None:
    client = FakeClient(workload())

    def change(found: Workload) -> None:
        found.spec.replicas = None
        found.spec.containers[1].image = "side:2"
        found.spec.containers.insert(0, Container("first"))

    resource = client.resource("apps/v1/deployments", Workload, namespace="default")
    changed = await resource.modify("web", change)
    assert [container.name for container in changed.spec.containers] == ["first", "app", "side"]
    found = client.find("apps/v1/deployments", "web")
    assert found is not None
    assert found["spec"] == {
        "unknown": "kept",
        "containers": [
            {"name": "first"},
            {"name": "app", "image": "app:1", "newField": {"deep": 1}},
            {"name": "side", "image": "side:2", "newField": 2},
        ],
    }


async def test_a_change_that_changes_nothing_is_not_written() -> None:
    client = FakeClient(workload())
    await client.resource("apps/v1/deployments", namespace="default").modify("web", lambda _: None)
    assert client.writes == []


async def test_a_conflict_calls_the_change_again_on_what_is_there_then() -> None:
    client = FakeClient(workload())
    other = FakeClient(server=client)
    seen: list[int | None] = []

    def interfere(_request: Request, done: bool) -> None:
        if not done and len(seen) == 1:
            other.put(workload() | {"spec": {"replicas": 7}})

    client.on_write = interfere

    async def change(found: Workload) -> None:
        seen.append(found.spec.replicas)
        found.spec.replicas = 9

    resource = client.resource("apps/v1/deployments", Workload, namespace="default")
    assert (await resource.modify("web", change)).spec.replicas == 9
    assert seen == [3, 7]


async def test_only_conflicts_are_tried_again_and_not_without_end() -> None:
    calls: list[int] = []

    async def call() -> None:
        calls.append(1)
        raise api_error(409, "Conflict", "changed")

    with pytest.raises(Conflict):
        await retry_on_conflict(call, attempts=4)
    assert len(calls) == 4

    async def exists() -> None:
        calls.append(1)
        raise api_error(409, "AlreadyExists", "there")

    with pytest.raises(AlreadyExists):
        await retry_on_conflict(exists)
    assert len(calls) == 5
    with pytest.raises(ValueError, match="attempts=0 must be at least 1"):
        await retry_on_conflict(call, attempts=0)


async def test_a_conflict_of_managers_is_not_tried_again() -> None:
    client = FakeClient(workload())
    await client.apply(workload(), manager="one", force=True)
    theirs = workload() | {"spec": {"replicas": 5}}
    with pytest.raises(ApplyConflict):
        await retry_on_conflict(lambda: client.apply(theirs, manager="two"))
    assert len(client.writes) == 2


@pytest.mark.parametrize(
    ("raw", "before", "after", "expected"),
    [
        (
            [{"x": 1, "new": 1}, {"x": 2, "new": 2}],
            [{"x": 1}, {"x": 2}],
            [{"x": 2}],
            [{"x": 2, "new": 2}],
        ),
        ([{"x": 1, "new": 1}], [{"x": 1}], [{"x": 5}], [{"x": 5, "new": 1}]),
        ([{"x": 1, "new": 1}], [{"x": 1}], [{"x": 5}, {"x": 6}], [{"x": 5}, {"x": 6}]),
        (["a", "b"], ["a", "b"], ["b", "c"], ["b", "c"]),
        ({"a": None, "b": 1}, {"b": 1}, {}, {"a": None}),
        ({"a": 1}, {"a": 1, "made": {}}, {"a": 2, "made": {}}, {"a": 2}),
        ({"a": {"new": 1}}, {}, {"a": {"b": 2}}, {"a": {"b": 2}}),
    ],
)
def test_items_without_a_key_are_matched_by_equality_then_by_position(
    raw: object, before: object, after: object, expected: object
) -> None:
    assert carry_over(raw, before, after) == expected


async def test_a_fake_server_allows_everything_and_the_question_is_complete() -> None:
    client = FakeClient()
    decision = await can_i(
        client, "patch", "apps/v1/deployments", namespace="shop", subresource="scale"
    )
    assert decision
    assert decision.reason == ""
    sent = msgspec.json.decode(client.requests[-1].body or b"")
    assert sent["spec"]["resourceAttributes"] == {
        "verb": "patch",
        "group": "apps",
        "version": "v1",
        "resource": "deployments",
        "subresource": "scale",
        "namespace": "shop",
    }
