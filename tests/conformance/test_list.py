"""Lists: versions, pages, selectors. What informers live on."""

from __future__ import annotations

import asyncio
import base64
import json

import pytest

from kubeloop.client.errors import is_version_too_large
from kubeloop.objects.list_watch import ListOptions
from kubeloop.objects.patches import MergePatch
from tests.conformance.behaviours import behaviour
from tests.conformance.custom import young_widgets
from tests.conformance.kube import Kube, names, refused
from tests.conformance.manifests import config_map, pod, service

MINE = "mine=yes"


async def fill(kube: Kube, count: int = 5) -> list[str]:
    """Make ConfigMaps with a label, in no order of their names; returns the names in order."""
    made = [f"m{number}" for number in range(count)]
    for name in reversed(made):
        await kube.maps.create(config_map(name, labels={"mine": "yes"}))
    return made


def listed(page) -> list[str]:
    return [item["metadata"]["name"] for item in page.items]


@behaviour("list.shape", "A list has the list's kind, a version, and items")
async def test_the_shape_of_a_list(kube: Kube) -> None:
    made = await kube.maps.create(config_map("a", labels={"mine": "yes"}))
    answer = await kube.raw.get(kube.path("v1/configmaps"), labelSelector=MINE)
    assert (answer.json["kind"], answer.json["apiVersion"]) == ("ConfigMapList", "v1")
    version = answer.json["metadata"]["resourceVersion"]
    assert int(version) >= int(made["metadata"]["resourceVersion"])
    (item,) = answer.json["items"]
    # The members of a list of a built-in kind do not repeat it.
    assert "kind" not in item
    assert "apiVersion" not in item


@behaviour("list.order", "Objects come in the order of their names")
async def test_lists_are_ordered(kube: Kube) -> None:
    made = await fill(kube)
    assert listed(await kube.maps.list(ListOptions(label_selector=MINE))) == made


@behaviour(
    "list.all-namespaces", "A list without a namespace has those of all, ordered by namespace"
)
async def test_a_list_of_all_namespaces(kube: Kube) -> None:
    other = (await kube.cluster("v1/namespaces").create({"metadata": {"generateName": "aaa-"}}))[
        "metadata"
    ]["name"]
    label = {"across": kube.namespace}
    await kube.maps.create(config_map("a", labels=label))
    await kube.client.resource("v1/configmaps").create(
        config_map("b", namespace=other, labels=label)
    )
    found = await names(kube.cluster("v1/configmaps"), selector=f"across={kube.namespace}")
    assert found == ["b", "a"]


@behaviour(
    "list.empty", "A list of nothing is an empty list, also in a namespace that is not there"
)
async def test_lists_may_be_empty(kube: Kube) -> None:
    answer = await kube.raw.get("/api/v1/namespaces/nowhere/configmaps")
    assert answer.status == 200
    assert answer.json["items"] == []


@behaviour("list.any-version", "resourceVersion=0 asks for any version, however old")
async def test_any_version(kube: Kube) -> None:
    page = await kube.maps.list(ListOptions(resource_version="0"))
    assert int(page.resource_version) > 0


@behaviour("list.not-older", "A version alone, or with NotOlderThan, gives one at least as new")
@pytest.mark.parametrize("match", ["", "NotOlderThan"])
async def test_not_older_than(kube: Kube, match: str) -> None:
    await fill(kube, 2)
    version = (await kube.maps.create(config_map("n", labels={"mine": "yes"})))["metadata"][
        "resourceVersion"
    ]
    page = await kube.maps.list(
        ListOptions(resource_version=version, resource_version_match=match, label_selector=MINE)
    )
    assert int(page.resource_version) >= int(version)
    assert listed(page) == ["m0", "m1", "n"]


@behaviour("list.exact", "Exact gives the state at that very version")
async def test_an_exact_version(kube: Kube) -> None:
    made = await kube.maps.create(config_map("a", {"x": "1"}, labels={"mine": "yes"}))
    version = made["metadata"]["resourceVersion"]
    await kube.maps.patch("a", MergePatch({"data": {"x": "2"}}))
    await kube.maps.create(config_map("b", labels={"mine": "yes"}))
    page = await kube.maps.list(
        ListOptions(resource_version=version, resource_version_match="Exact", label_selector=MINE)
    )
    assert page.resource_version == version
    assert [item["data"] for item in page.items] == [{"x": "1"}]


@behaviour("list.exact-gone", "Exact of a version that was compacted is 410 Expired")
async def test_an_exact_version_that_is_gone(kube: Kube) -> None:
    widgets, version = await young_widgets(kube)
    options = ListOptions(resource_version=version, resource_version_match="Exact")
    error = await refused(widgets.list(options), 410, "Expired")
    assert "too old" in str(error)


@behaviour("list.too-large", "A version from the future times out, with a cause that says so")
async def test_a_version_from_the_future(kube: Kube) -> None:
    future = str(int(await kube.version_now()) + 1_000_000)
    options = ListOptions(resource_version=future, timeout_seconds=1)
    error = await refused(kube.maps.list(options), 504, "Timeout")
    assert is_version_too_large(error)
    assert "Too large resource version" in str(error)
    assert [cause.reason for cause in error.causes] == ["ResourceVersionTooLarge"]
    assert error.retry_after is not None


@behaviour("list.malformed-version", "A version that is not a number is refused")
async def test_a_malformed_version(kube: Kube) -> None:
    options = ListOptions(resource_version="nonsense")
    error = await refused(kube.maps.list(options), 400, "BadRequest")
    assert 'Invalid value: "nonsense"' in str(error)


@behaviour("list.match-without-version", "resourceVersionMatch needs a resourceVersion")
async def test_match_needs_a_version(kube: Kube) -> None:
    options = ListOptions(resource_version_match="NotOlderThan")
    error = await refused(kube.maps.list(options), 422, "Invalid")
    assert (
        "resourceVersionMatch: Forbidden: resourceVersionMatch is forbidden unless"
        " resourceVersion is provided"
    ) in str(error)


@behaviour("list.match-unknown", "Other values of resourceVersionMatch are refused")
async def test_match_is_checked(kube: Kube) -> None:
    options = ListOptions(resource_version="1", resource_version_match="Newest")
    error = await refused(kube.maps.list(options), 422, "Invalid")
    assert 'resourceVersionMatch: Unsupported value: "Newest"' in str(error)


@behaviour("list.exact-zero", "Exact of version 0 is refused")
async def test_exact_zero_is_refused(kube: Kube) -> None:
    options = ListOptions(resource_version="0", resource_version_match="Exact")
    error = await refused(kube.maps.list(options), 422, "Invalid")
    assert 'resourceVersionMatch "exact" is forbidden for resourceVersion "0"' in str(error)


@behaviour("list.limit-continue", "Pages of a limited list add up to one snapshot")
async def test_pages_are_one_snapshot(kube: Kube) -> None:
    made = await fill(kube)
    found, token, versions = [], "", set()
    while True:
        page = await kube.maps.list(ListOptions(limit=2, continue_token=token, label_selector=MINE))
        found += listed(page)
        versions.add(page.resource_version)
        if not page.continue_token:
            break
        token = page.continue_token
        # Later writes are not seen by later pages.
        await kube.maps.create(config_map(f"n{len(found)}", labels={"mine": "yes"}))
    assert found == made
    assert len(versions) == 1


@behaviour("list.remaining", "A page of an unfiltered list tells how many objects follow")
async def test_remaining_items(kube: Kube) -> None:
    for number in range(5):
        await kube.of("v1/secrets").create({"metadata": {"name": f"s{number}"}})
    page = await kube.of("v1/secrets").list(ListOptions(limit=2))
    assert page.remaining == 3
    rest = await kube.of("v1/secrets").list(
        ListOptions(limit=2, continue_token=page.continue_token)
    )
    assert rest.remaining == 1
    last = await kube.of("v1/secrets").list(ListOptions(continue_token=rest.continue_token))
    assert last.remaining is None
    assert last.continue_token == ""


@behaviour("list.remaining-filtered", "With a selector, the remaining items are not counted")
async def test_remaining_is_not_reported_with_selectors(kube: Kube) -> None:
    await fill(kube)
    page = await kube.maps.list(ListOptions(limit=2, label_selector=MINE))
    assert page.remaining is None
    assert page.continue_token


@behaviour("list.limit-large", "A limit larger than the list gives no token")
async def test_a_large_limit(kube: Kube) -> None:
    made = await fill(kube, 3)
    page = await kube.maps.list(ListOptions(limit=100, label_selector=MINE))
    assert (listed(page), page.continue_token) == (made, "")


@behaviour(
    "list.continue-expired", "A token that outlived its version is 410, with a token to go on"
)
async def test_an_expired_token_can_go_on(kube: Kube) -> None:
    widgets, version = await young_widgets(kube)
    page = await widgets.list(ListOptions(limit=2))
    assert listed(page) == ["a", "b"]
    token = expired(page.continue_token, version)
    await widgets.patch("d", MergePatch({"spec": {"replicas": 1}}))
    await asyncio.to_thread(kube.server.compact)
    error = await refused(widgets.list(ListOptions(limit=2, continue_token=token)), 410, "Expired")
    assert "The provided continue parameter is too old" in str(error)
    assert error.status.metadata is not None
    again = error.status.metadata.continue_token
    rest = await widgets.list(ListOptions(limit=2, continue_token=again))
    assert listed(rest) == ["c", "d"]
    assert rest.items[1]["spec"]["replicas"] == 1, "it is the present state"


def expired(token: str, version: str) -> str:
    """The same token for an old version, where the server has snapshots that outlive compaction."""
    document = json.loads(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)))
    if "rv" not in document:
        return token
    document["rv"] = int(version)
    text = json.dumps(document, separators=(",", ":"))
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


@behaviour("list.continue-malformed", "A malformed token is 400")
async def test_a_malformed_token(kube: Kube) -> None:
    error = await refused(kube.maps.list(ListOptions(continue_token="nonsense")), 400, "BadRequest")
    assert "continue key is not valid" in str(error)


@behaviour("list.continue-with-version", "A token and a resourceVersion exclude each other")
async def test_a_token_has_its_own_version(kube: Kube) -> None:
    await fill(kube)
    page = await kube.maps.list(ListOptions(limit=2, label_selector=MINE))
    options = ListOptions(
        limit=2,
        label_selector=MINE,
        continue_token=page.continue_token,
        resource_version=page.resource_version,
    )
    error = await refused(kube.maps.list(options), 400)
    assert "specifying resource version is not allowed when using continue" in str(error)


@behaviour("list.limit-zero-version", "With resourceVersion=0 the limit is not obeyed")
async def test_version_zero_ignores_the_limit(kube: Kube) -> None:
    made = await fill(kube)
    version = await kube.version_now()
    await kube.maps.list(ListOptions(resource_version=version))  # the cache is that new now
    page = await kube.maps.list(ListOptions(limit=2, resource_version="0", label_selector=MINE))
    assert (listed(page), page.continue_token) == (made, "")


@behaviour("list.invalid-limit", "A limit that is not a number is refused")
async def test_a_malformed_limit(kube: Kube) -> None:
    answer = await kube.raw.get(kube.path("v1/configmaps"), limit="many")
    assert (answer.status, answer.json["reason"]) == (400, "BadRequest")


SELECTORS = {
    "app=a": ["one", "three"],
    "app==a": ["one", "three"],
    "app!=a": ["two", "zero"],
    "app in (a, b)": ["one", "three", "two"],
    "app notin (a)": ["two", "zero"],
    "app": ["one", "three", "two"],
    "!app": ["zero"],
    "app=a,tier=front": ["one"],
    "app,!tier": ["three", "two"],
    "rank>1": ["two"],
    "rank<2": ["one"],
    "tier=": ["zero"],
}


@behaviour("list.labels", "Label selectors: equality, sets, existence, numbers, and all together")
@pytest.mark.parametrize("selector", SELECTORS)
async def test_label_selectors(kube: Kube, selector: str) -> None:
    labels = {
        "one": {"app": "a", "tier": "front", "rank": "1"},
        "two": {"app": "b", "rank": "2"},
        "three": {"app": "a"},
        "zero": {"tier": ""},
    }
    # The namespace has a ConfigMap of the controllers' that would match negations.
    secrets = kube.of("v1/secrets")
    for name, given in labels.items():
        await secrets.create({"metadata": {"name": name, "labels": given}})
    assert listed(await secrets.list(ListOptions(label_selector=selector))) == SELECTORS[selector]


@behaviour("list.labels-malformed", "A label selector that cannot be read is 400, with the place")
async def test_malformed_label_selectors(kube: Kube) -> None:
    error = await refused(kube.maps.list(ListOptions(label_selector="a in (")), 400, "BadRequest")
    assert "unable to parse requirement" in str(error)


@behaviour("list.fields-name", "metadata.name and metadata.namespace select objects of any kind")
async def test_field_selectors_of_every_kind(kube: Kube) -> None:
    await fill(kube, 3)
    found = await names(kube.maps, field_selector="metadata.name=m1")
    assert found == ["m1"]
    found = await names(kube.maps, selector=MINE, field_selector="metadata.name!=m1")
    assert found == ["m0", "m2"]
    everywhere = kube.cluster("v1/configmaps")
    found = await names(
        everywhere, selector=MINE, field_selector=f"metadata.namespace={kube.namespace}"
    )
    assert found == ["m0", "m1", "m2"]


@behaviour("list.fields-pods", "Pods can be selected by phase, node, restart policy and more")
async def test_field_selectors_of_pods(kube: Kube) -> None:
    await kube.pods.create(pod("a", nodeName="ghost"))
    await kube.pods.create(pod("b", schedulerName="nobody", restartPolicy="Never"))
    status = kube.pods.subresource("status")
    await status.patch("a", MergePatch({"status": {"phase": "Running", "podIP": "10.1.2.3"}}))
    expected = {
        "status.phase=Running": ["a"],
        "status.phase!=Running": ["b"],
        "spec.nodeName=ghost": ["a"],
        "spec.nodeName=": ["b"],
        "spec.restartPolicy=Never": ["b"],
        "spec.schedulerName=nobody": ["b"],
        "spec.serviceAccountName=default,status.phase=Pending": ["b"],
        "spec.hostNetwork=false": ["a", "b"],
    }
    found = {selector: await names(kube.pods, field_selector=selector) for selector in expected}
    assert found == expected


@behaviour("list.fields-services", "Services can be selected by type and clusterIP")
async def test_field_selectors_of_services(kube: Kube) -> None:
    await kube.services.create(service("a", clusterIP="None"))
    await kube.services.create(service("b", type="NodePort"))
    assert await names(kube.services, field_selector="spec.clusterIP=None") == ["a"]
    assert await names(kube.services, field_selector="spec.type=NodePort") == ["b"]


@behaviour("list.fields-unsupported", "Fields that cannot be selected are refused by name")
async def test_unsupported_field_selectors(kube: Kube) -> None:
    error = await refused(kube.maps.list(ListOptions(field_selector="data.x=1")), 400, "BadRequest")
    assert '"data.x" is not a known field selector' in str(error)
    assert 'only "metadata.name", "metadata.namespace"' in str(error)


@behaviour("list.fields-pods-unsupported", "A pod's other fields cannot be selected")
async def test_unsupported_pod_fields(kube: Kube) -> None:
    error = await refused(
        kube.pods.list(ListOptions(field_selector="spec.hostname=x")), 400, "BadRequest"
    )
    assert "field label not supported: spec.hostname" in str(error)


@behaviour("list.fields-malformed", "A field selector that cannot be read is 400")
async def test_malformed_field_selectors(kube: Kube) -> None:
    await refused(kube.maps.list(ListOptions(field_selector="nonsense")), 400, "BadRequest")
