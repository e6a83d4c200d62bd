"""Access reviews: what may I, what may they."""

from __future__ import annotations

import pytest
from tests.auth.support import CLUSTER_ROLES, role, rule, user

REVIEWS = "/apis/authorization.k8s.io/v1"
OWN = f"{REVIEWS}/selfsubjectaccessreviews"
ANY = f"{REVIEWS}/subjectaccessreviews"
LOCAL = f"{REVIEWS}/namespaces/default/localsubjectaccessreviews"
RULES = f"{REVIEWS}/selfsubjectrulesreviews"

PODS = {"verb": "list", "resource": "pods", "namespace": "default"}


async def test_a_review_tells_which_binding_allows(cluster):
    await cluster.bind("view", user("x"))
    async with cluster.user("x") as x:
        good = await x.create(OWN, {"spec": {"resourceAttributes": PODS}})
        assert good["status"] == {
            "allowed": True,
            "reason": 'RBAC: allowed by ClusterRoleBinding "b" of ClusterRole "view" to User "x"',
        }
        bad = await x.create(OWN, {"spec": {"resourceAttributes": {**PODS, "verb": "create"}}})
        assert bad["status"] == {"allowed": False}
        assert bad["spec"]["resourceAttributes"]["verb"] == "create"
        paths = {"nonResourceAttributes": {"path": "/version", "verb": "get"}}
        assert (await x.create(OWN, {"spec": paths}))["status"]["allowed"] is True
        assert (
            await x.create(ANY, {"spec": {"user": "y", "resourceAttributes": PODS}})
        ).code == 403


async def test_reviews_of_others_count_their_groups(cluster):
    await cluster.bind("view", {"kind": "Group", "name": "team"})
    spec = {"user": "y", "groups": ["team"], "resourceAttributes": PODS}
    assert (await cluster.admin.create(ANY, {"spec": spec}))["status"]["allowed"] is True
    assert (await cluster.admin.create(ANY, {"spec": {**spec, "groups": []}}))["status"] == {
        "allowed": False
    }
    assert (await cluster.admin.create(LOCAL, {"spec": spec})).code == 404


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        (
            {"user": "x"},
            (
                "spec.resourceAttributes: Invalid value: null: exactly one of nonResourceAttributes or"
                " resourceAttributes must be specified"
            ),
        ),
        ({"resourceAttributes": PODS}, "at least one of user or group must be specified"),
        (
            {"user": "x", "resourceAttributes": PODS, "nonResourceAttributes": {"path": "/"}},
            "exactly one of nonResourceAttributes or resourceAttributes must be specified",
        ),
    ],
)
async def test_a_review_that_asks_nothing_is_invalid(cluster, spec, text):
    reply = await cluster.admin.create(ANY, {"spec": spec})
    assert (reply.code, reply["reason"]) == (422, "Invalid")
    assert text in reply["message"]


async def test_the_rules_of_a_user_are_listed(cluster):
    await cluster.admin.create(CLUSTER_ROLES, role("r", rule("get", "secrets", names="mine")))
    await cluster.bind("r", user("x"))
    async with cluster.user("x") as x:
        reply = await x.create(RULES, {"spec": {"namespace": "default"}})
        status = reply["status"]
        assert rule("get", "secrets", names="mine") in status["resourceRules"]
        assert any("/healthz" in paths["nonResourceURLs"] for paths in status["nonResourceRules"])
        assert status["incomplete"] is False
        assert (await x.create(RULES, {"spec": {}})).code == 400


async def test_reviews_are_only_created(cluster):
    assert (await cluster.admin.get(OWN)).code == 405
    assert (await cluster.admin.create(OWN, {"spec": []})).code in (400, 422)
