"""RBAC as callers meet it."""

from __future__ import annotations

from typing import Any

import pytest
from tests.auth.support import (
    ACCOUNTS,
    CLUSTER_ROLE_BINDINGS,
    CLUSTER_ROLES,
    PODS,
    ROLE_BINDINGS,
    ROLES,
    binding,
    guarded,
    impersonating,
    role,
    rule,
    user,
)


async def test_a_refusal_names_user_verb_resource_and_namespace(cluster):
    async with cluster.user("x") as x:
        listing = await x.get(PODS)
        assert (listing.code, listing["reason"]) == (403, "Forbidden")
        assert listing["message"] == (
            'pods is forbidden: User "x" cannot list resource "pods" in API group "" in the'
            ' namespace "default"'
        )
        scale = await x.get("/apis/apps/v1/namespaces/default/deployments/web/scale")
        assert scale["message"] == (
            'deployments.apps "web" is forbidden: User "x" cannot get resource'
            ' "deployments/scale" in API group "apps" in the namespace "default"'
        )
        nodes = await x.get("/api/v1/nodes")
        assert nodes["message"].endswith('"nodes" in API group "" at the cluster scope')
        path = await x.get("/metrics")
        assert path["message"] == 'forbidden: User "x" cannot get path "/metrics"'


async def test_authenticated_users_discover_and_anonymous_ones_read_the_version(cluster):
    async with cluster.user("x") as x, cluster.user("") as nobody:
        assert (await x.get("/api")).code == 200
        assert (await x.get("/openapi/v3")).code == 200
        assert (await nobody.get("/version")).code == 200
        assert (await nobody.get("/api")).code == 403
        refusal = await nobody.get(PODS)
        assert (refusal.code, 'User "system:anonymous"' in refusal["message"]) == (403, True)


async def test_a_role_binding_reaches_its_namespace_only(cluster):
    await cluster.bind_in_default("view", user("x"))
    async with cluster.user("x") as x:
        assert (await x.get(PODS)).code == 200
        assert (await x.get("/api/v1/namespaces/kube-system/pods")).code == 403
        assert (await x.get("/api/v1/pods")).code == 403
        assert (await x.create(PODS, {})).code == 403


async def test_a_permission_counts_from_its_write_to_its_deletion(cluster):
    async with cluster.user("x") as x:
        await cluster.admin.create(ROLES, role("r", rule("list", "pods")))
        assert (await x.get(PODS)).code == 403
        await cluster.admin.create(ROLE_BINDINGS, binding("b", "r", user("x"), kind="Role"))
        assert (await x.get(PODS)).code == 200
        await cluster.admin.merge(f"{ROLES}/r", {"rules": [rule("get", "pods")]})
        assert (await x.get(PODS)).code == 403
        await cluster.admin.merge(f"{ROLES}/r", {"rules": [rule("list", "pods")]})
        assert (await x.get(PODS)).code == 200
        await cluster.admin.delete(f"{ROLE_BINDINGS}/b")
        assert (await x.get(PODS)).code == 403


async def test_a_missing_role_is_named_in_the_refusal(cluster):
    await cluster.bind("gone", user("x"))
    async with cluster.user("x") as x:
        refusal = await x.get(PODS)
        assert refusal["message"].endswith(
            'in the namespace "default": RBAC: clusterrole.rbac.authorization.k8s.io "gone" not found'
        )


@pytest.mark.parametrize(
    "subject",
    [
        {"kind": "User", "name": "x"},
        {"kind": "Group", "name": "team"},
        {"kind": "Group", "name": "system:authenticated"},
    ],
)
async def test_users_and_groups_are_subjects(cluster, subject):
    await cluster.bind("view", subject)
    async with cluster.user("x", "team") as x:
        assert (await x.get("/api/v1/pods")).code == 200


async def test_names_restrict_a_rule(cluster):
    await cluster.admin.create(ROLES, role("r", rule("get", "secrets", names="mine")))
    await cluster.admin.create(ROLE_BINDINGS, binding("b", "r", user("x"), kind="Role"))
    async with cluster.user("x") as x:
        secrets = "/api/v1/namespaces/default/secrets"
        assert (await x.get(f"{secrets}/mine")).code == 404
        assert (await x.get(f"{secrets}/other")).code == 403
        assert (await x.get(secrets)).code == 403


async def test_the_usual_roles_do_what_they_say(cluster):
    for name in ("view", "edit", "admin", "cluster-admin"):
        await cluster.bind(name, user(name), name=f"test-{name}")
    expected = {
        ("list", "pods"): "view edit admin cluster-admin",
        ("list", "secrets"): "edit admin cluster-admin",
        ("create", "pods"): "edit admin cluster-admin",
        ("delete", "nodes"): "cluster-admin",
    }
    for (verb, resource), allowed in expected.items():
        for name in ("view", "edit", "admin", "cluster-admin"):
            assert await cluster.may(name, verb, resource) is (name in allowed.split()), name
    rbac = {"group": "rbac.authorization.k8s.io"}
    assert await cluster.may("admin", "create", "roles", **rbac)
    assert not await cluster.may("edit", "create", "roles", **rbac)


async def test_nodes_have_their_rights_without_a_binding(cluster):
    async with cluster.user("system:node:a", "system:nodes") as node:
        assert (await node.get("/api/v1/pods")).code == 200
        assert (await node.get("/api/v1/nodes/a")).code == 404
        assert (await node.create("/api/v1/namespaces", {})).code == 403
    async with cluster.user("system:node:a") as pretender:
        assert (await pretender.get("/api/v1/pods")).code == 403


# Aggregation


async def test_an_aggregated_role_follows_what_it_selects(cluster):
    label = "rbac.example.com/aggregate-to-monitoring"
    selector = {"clusterRoleSelectors": [{"matchLabels": {label: "true"}}]}
    await cluster.admin.create(
        CLUSTER_ROLES, {"metadata": {"name": "monitoring"}, "aggregationRule": selector}
    )
    assert (await cluster.admin.get(f"{CLUSTER_ROLES}/monitoring")).body.get("rules") in (None, [])
    part = role("part", rule("get", "services"))
    part["metadata"]["labels"] = {label: "true"}
    await cluster.admin.create(CLUSTER_ROLES, part)
    grown = await cluster.admin.get(f"{CLUSTER_ROLES}/monitoring")
    assert grown["rules"] == [rule("get", "services")]
    await cluster.bind("monitoring", user("x"))
    assert await cluster.may("x", "get", "services")
    await cluster.admin.delete(f"{CLUSTER_ROLES}/part")
    assert not await cluster.may("x", "get", "services")


async def test_custom_resources_join_the_usual_roles_by_label(cluster):
    await cluster.bind("admin", user("x"))
    widgets = {"group": "example.com"}
    assert not await cluster.may("x", "get", "widgets", **widgets)
    part = role("widgets-view", rule("get", "widgets", group="example.com"))
    part["metadata"]["labels"] = {"rbac.authorization.k8s.io/aggregate-to-view": "true"}
    await cluster.admin.create(CLUSTER_ROLES, part)
    # view is part of edit, and edit is part of admin.
    assert await cluster.may("x", "get", "widgets", **widgets)


# Impersonation


async def test_impersonation_takes_a_permission_for_every_part(cluster):
    await cluster.admin.create(CLUSTER_ROLES, role("i", rule("impersonate", "users", names="bob")))
    await cluster.bind("i", user("x"))
    me = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
    async with cluster.user("x") as x:
        refused = await impersonating(x, PODS, ("Impersonate-User", "eve"))
        assert refused["message"] == (
            'users "eve" is forbidden: User "x" cannot impersonate resource "users" in API group'
            ' "" at the cluster scope'
        )
        as_bob = await impersonating(x, PODS, ("Impersonate-User", "bob"))
        assert 'User "bob" cannot list' in as_bob["message"]
        group = await impersonating(
            x, PODS, ("Impersonate-User", "bob"), ("Impersonate-Group", "system:masters")
        )
        assert 'groups "system:masters" is forbidden' in group["message"]
        alone = await impersonating(x, PODS, ("Impersonate-Group", "team"))
        assert (alone.code, "without impersonating a user" in alone["message"]) == (400, True)
        more = await impersonating(x, PODS, ("Impersonate-User", "bob"), ("Impersonate-Uid", "u-1"))
        assert (more.code, "impersonate-uid" in more["message"]) == (400, True)
    assert (await cluster.admin.create(me, {})).code == 201


async def test_who_is_impersonated_gets_the_usual_groups(cluster):
    async def who(*headers: tuple[str, str]) -> dict[str, Any]:
        url = cluster.server.url + "/apis/authentication.k8s.io/v1/selfsubjectreviews"
        async with cluster.admin.session.post(url, headers=headers, json={}) as response:
            return (await response.json())["status"]["userInfo"]

    assert await who(("Impersonate-User", "bob")) == {
        "username": "bob",
        "groups": ["system:authenticated"],
    }
    account = await who(("Impersonate-User", "system:serviceaccount:default:robot"))
    assert account["groups"] == [
        "system:serviceaccounts",
        "system:serviceaccounts:default",
        "system:authenticated",
    ]
    rich = await who(
        ("Impersonate-User", "bob"),
        ("Impersonate-Group", "a"),
        ("Impersonate-Group", "b"),
    )
    assert rich == {"username": "bob", "groups": ["a", "b", "system:authenticated"]}
    await cluster.bind("cluster-admin", {"kind": "Group", "name": "system:unauthenticated"})
    assert (await who(("Impersonate-User", "system:anonymous")))["groups"] == [
        "system:unauthenticated"
    ]


# Persistence


async def test_roles_are_made_once_and_changes_to_them_stay(tmp_path):
    async with guarded(data_dir=tmp_path) as first:
        await first.admin.delete(f"{CLUSTER_ROLES}/system:heapster")
        await first.admin.merge(
            f"{CLUSTER_ROLES}/system:basic-user", {"metadata": {"labels": {"mine": "yes"}}}
        )
        await first.bind("view", user("x"))
        before = await first.admin.get(f"{CLUSTER_ROLES}/cluster-admin")
    async with guarded(data_dir=tmp_path) as second:
        assert (await second.admin.get(f"{CLUSTER_ROLES}/system:heapster")).code == 200
        kept = await second.admin.get(f"{CLUSTER_ROLES}/system:basic-user")
        assert kept["metadata"]["labels"]["mine"] == "yes"
        after = await second.admin.get(f"{CLUSTER_ROLES}/cluster-admin")
        assert after["metadata"]["uid"] == before["metadata"]["uid"]
        assert await second.may("x", "list", "pods")
        assert (await second.admin.get(CLUSTER_ROLE_BINDINGS)).code == 200


async def test_the_policy_survives_compaction(cluster):
    await cluster.bind("view", user("x"))
    assert await cluster.may("x", "list", "pods")
    await cluster.admin.create("/_dev/faults", {"compact": True})
    assert await cluster.may("x", "list", "pods")
    await cluster.admin.delete(f"{CLUSTER_ROLE_BINDINGS}/b")
    await cluster.admin.create("/_dev/faults", {"compact": True})
    assert not await cluster.may("x", "list", "pods")
    assert (await cluster.admin.get(ACCOUNTS)).code == 200
