"""Lists: selectors, pages of one snapshot, versions."""

from __future__ import annotations

import pytest
from tests.apiserver.harness import CONFIG_MAPS, config_map, pod


async def fill(kube, count=7):
    for number in range(count):
        await kube.create(CONFIG_MAPS, config_map(f"c{number}", {"parity": str(number % 2)}))


def names(reply):
    return [item["metadata"]["name"] for item in reply["items"]]


async def test_a_list_is_ordered_by_name_and_stamped_with_a_version(kube):
    await fill(kube)
    reply = await kube.get(CONFIG_MAPS)
    assert (reply["kind"], reply["apiVersion"]) == ("ConfigMapList", "v1")
    assert names(reply) == [f"c{number}" for number in range(7)]
    assert int(reply["metadata"]["resourceVersion"]) >= 7


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ("parity=1", ["c1", "c3", "c5"]),
        ("parity!=1", ["c0", "c2", "c4", "c6"]),
        ("parity in (0, 1),parity notin (1)", ["c0", "c2", "c4", "c6"]),
        ("parity>0", ["c1", "c3", "c5"]),
        ("!parity", []),
        ("parity", ["c0", "c1", "c2", "c3", "c4", "c5", "c6"]),
    ],
)
async def test_label_selectors_select(kube, selector, expected):
    await fill(kube)
    assert names(await kube.get(CONFIG_MAPS, labelSelector=selector)) == expected


async def test_field_selectors_select_what_a_kind_offers(kube):
    pods = "/api/v1/namespaces/default/pods"
    await kube.create(pods, pod("a", nodeName="n1"))
    await kube.create(pods, pod("b"))
    assert names(await kube.get(pods, fieldSelector="spec.nodeName=n1")) == ["a"]
    assert names(await kube.get(pods, fieldSelector="spec.nodeName!=n1,status.phase=Pending")) == [
        "b"
    ]
    assert names(await kube.get(pods, fieldSelector="metadata.name=b")) == ["b"]
    refused = await kube.get(pods, fieldSelector="spec.color=red")
    assert (refused.code, refused["message"]) == (400, "field label not supported: spec.color")


async def test_pages_are_of_one_moment(kube):
    await fill(kube)
    first = await kube.get(CONFIG_MAPS, limit="3")
    assert names(first) == ["c0", "c1", "c2"]
    assert first["metadata"]["remainingItemCount"] == 4
    await kube.delete(f"{CONFIG_MAPS}/c4")
    await kube.create(CONFIG_MAPS, config_map("c33"))
    await kube.merge(f"{CONFIG_MAPS}/c5", {"data": {"new": "x"}})
    second = await kube.get(CONFIG_MAPS, limit="3", **{"continue": first["metadata"]["continue"]})
    assert names(second) == ["c3", "c4", "c5"]
    assert "data" not in second["items"][2]
    assert second["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]
    third = await kube.get(CONFIG_MAPS, limit="3", **{"continue": second["metadata"]["continue"]})
    assert names(third) == ["c6"]
    assert "continue" not in third["metadata"]


async def test_a_token_expires_with_the_history_and_offers_to_go_on(kube):
    await fill(kube)
    first = await kube.get(CONFIG_MAPS, limit="3")
    await kube.create(CONFIG_MAPS, config_map("d"))
    kube.server.core.store.compact()
    expired = await kube.get(CONFIG_MAPS, limit="9", **{"continue": first["metadata"]["continue"]})
    assert (expired.code, expired["reason"]) == (410, "Expired")
    rest = await kube.get(CONFIG_MAPS, **{"continue": expired["metadata"]["continue"]})
    assert names(rest) == ["c3", "c4", "c5", "c6", "d"]


async def test_an_exact_version_is_a_look_back(kube):
    await fill(kube, 2)
    before = (await kube.get(CONFIG_MAPS))["metadata"]["resourceVersion"]
    await kube.delete(f"{CONFIG_MAPS}/c0")
    exact = await kube.get(CONFIG_MAPS, resourceVersion=before, resourceVersionMatch="Exact")
    assert names(exact) == ["c0", "c1"]
    assert names(await kube.get(CONFIG_MAPS, resourceVersion="0")) == ["c1"]


async def test_a_version_from_the_future_is_too_large(kube):
    reply = await kube.get(CONFIG_MAPS, resourceVersion="999999")
    assert (reply.code, reply["reason"]) == (504, "Timeout")
    assert reply["details"]["causes"][0]["reason"] == "ResourceVersionTooLarge"


async def test_a_namespace_s_list_does_not_show_its_neighbour(kube):
    await kube.create("/api/v1/namespaces", {"metadata": {"name": "default-2"}})
    await kube.create("/api/v1/namespaces/default-2/configmaps", config_map("other"))
    await fill(kube, 1)
    assert names(await kube.get(CONFIG_MAPS)) == ["c0"]
    assert names(await kube.get("/api/v1/configmaps")) == ["other", "c0"]


async def test_malformed_parameters_are_refused(kube):
    for query in (
        {"limit": "x"},
        {"limit": "-1"},
        {"continue": "nonsense"},
        {"resourceVersion": "abc"},
        {"labelSelector": "a b"},
        {"labelSelector": "a in ()b"},
        {"fieldSelector": "nonsense"},
    ):
        assert (await kube.get(CONFIG_MAPS, **query)).code == 400, query
    assert (await kube.get(CONFIG_MAPS, resourceVersionMatch="Exact")).code == 422
