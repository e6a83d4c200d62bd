"""Who may do what: RBAC, reviews, impersonation, tokens."""

from __future__ import annotations

import contextlib
import dataclasses
import uuid
from collections.abc import AsyncIterator
from typing import Any

from kubeloop.client import Client, ClientConfig, Forbidden, Impersonation
from kubeloop.client.resource import Resource
from kubeloop.objects.list_watch import WatchOptions
from kubeloop.objects.meta import JsonObject
from kubeloop.objects.patches import MergePatch
from tests.conformance.behaviours import behaviour
from tests.conformance.kube import Kube, eventually, names, refused
from tests.conformance.manifests import config_map, deployment, pod
from tests.conformance.raw import raw_for, tls_of_kubeconfig

RBAC = "rbac.authorization.k8s.io/v1"


def new_user() -> str:
    return f"user-{uuid.uuid4().hex[:8]}"


@contextlib.asynccontextmanager
async def signed_in(kube: Kube, user: str, *groups: str) -> AsyncIterator[Client]:
    """A client of somebody else."""
    async with Client.from_kubeconfig(kube.server.kubeconfig_for(user, groups)) as client:
        yield client


def rule(resources: list[str], verbs: list[str], **more: Any) -> JsonObject:
    return {"apiGroups": ["", "apps"], "resources": resources, "verbs": verbs, **more}


async def grant(kube: Kube, user: str, *rules: JsonObject, kind: str = "User") -> None:
    """Let somebody do something in the test's namespace."""
    role = {"metadata": {"name": f"for-{user}"}, "rules": list(rules)}
    await kube.of(f"{RBAC}/roles").create(role)
    subject = {"kind": kind, "name": user}
    if kind == "ServiceAccount":
        subject["namespace"] = kube.namespace
    else:
        subject["apiGroup"] = "rbac.authorization.k8s.io"
    binding = {
        "metadata": {"name": f"for-{user}"},
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io",
            "kind": "Role",
            "name": f"for-{user}",
        },
        "subjects": [subject],
    }
    await kube.of(f"{RBAC}/rolebindings").create(binding)


async def allowed(
    kube: Kube, client: Client, resource: str = "v1/configmaps"
) -> Resource[JsonObject]:
    """The resource as somebody sees it, once the authorizer has learned of the grant."""
    found = client.resource(resource, namespace=kube.namespace)

    async def may() -> bool:
        try:
            await names(found)
        except Forbidden:
            return False
        return True

    await eventually(may)
    return found


@behaviour("rbac.forbidden", "A refusal names exactly the verb and resource that are not allowed")
async def test_nothing_is_granted_by_default(kube: Kube) -> None:
    user = new_user()
    async with signed_in(kube, user) as client:
        maps = client.resource("v1/configmaps", namespace=kube.namespace)
        error = await refused(maps.get("a"), 403, "Forbidden")
        assert (
            str(error)
            == f'configmaps "a" is forbidden: User "{user}" cannot get resource "configmaps" in'
            f' API group "" in the namespace "{kube.namespace}"'
        )
        deployments = client.resource("apps/v1/deployments", namespace=kube.namespace)
        error = await refused(deployments.create(deployment()), 403, "Forbidden")
        assert (
            str(error) == f'deployments.apps is forbidden: User "{user}" cannot create resource'
            f' "deployments" in API group "apps" in the namespace "{kube.namespace}"'
        )


@behaviour("rbac.cluster-forbidden", "At the cluster scope the refusal says so")
async def test_cluster_scope(kube: Kube) -> None:
    user = new_user()
    async with signed_in(kube, user) as client:
        error = await refused(client.resource("v1/nodes").get("n"), 403, "Forbidden")
    assert (
        str(error) == f'nodes "n" is forbidden: User "{user}" cannot get resource "nodes" in API'
        ' group "" at the cluster scope'
    )


@behaviour("rbac.path-forbidden", "Non-resource paths can be forbidden too")
async def test_paths(kube: Kube) -> None:
    user = new_user()
    tls = tls_of_kubeconfig(kube.server.kubeconfig_for(user))
    async with raw_for(kube.server.url, tls) as raw:
        answer = await raw.get("/metrics", accept="*/*")
    assert answer.status == 403
    assert f'User "{user}" cannot get path "/metrics"' in answer.json["message"]


@behaviour(
    "rbac.role", "A role allows its verbs on its resources in its namespace, and nothing else"
)
async def test_roles(kube: Kube) -> None:
    user = new_user()
    await kube.maps.create(config_map("a"))
    await grant(kube, user, rule(["configmaps"], ["get", "list"]))
    async with signed_in(kube, user) as client:
        maps = await allowed(kube, client)
        assert (await maps.get("a"))["metadata"]["name"] == "a"
        await refused(maps.create(config_map("b")), 403)
        await refused(maps.delete("a"), 403)
        secrets = client.resource("v1/secrets", namespace=kube.namespace)
        await refused(secrets.get("s"), 403)
        elsewhere = client.resource("v1/configmaps", namespace="default")
        await refused(elsewhere.get("a"), 403)


@behaviour("rbac.watch", "list and watch are verbs of their own")
async def test_watch_is_a_verb(kube: Kube) -> None:
    user = new_user()
    await grant(kube, user, rule(["configmaps"], ["list"]))
    async with signed_in(kube, user) as client:
        maps = await allowed(kube, client)
        error = await refused(maps.watch(WatchOptions()), 403, "Forbidden")
    assert 'cannot watch resource "configmaps"' in str(error)


@behaviour("rbac.resource-names", "resourceNames limit a rule to objects of these names")
async def test_resource_names(kube: Kube) -> None:
    user = new_user()
    for name in ("mine", "other"):
        await kube.maps.create(config_map(name))
    named = rule(["configmaps"], ["get", "patch"], resourceNames=["mine"])
    await grant(kube, user, named, rule(["secrets"], ["list"]))
    async with signed_in(kube, user) as client:
        await allowed(kube, client, "v1/secrets")
        maps = client.resource("v1/configmaps", namespace=kube.namespace)
        await maps.get("mine")
        await maps.patch("mine", MergePatch({"data": {"x": "1"}}))
        await refused(maps.get("other"), 403)
        await refused(maps.create(config_map("new")), 403)


@behaviour("rbac.subresource", "A subresource is granted apart from its resource")
async def test_subresources(kube: Kube) -> None:
    user = new_user()
    await kube.deployments.create(deployment())
    await grant(
        kube, user, rule(["deployments/scale"], ["get", "patch"]), rule(["secrets"], ["list"])
    )
    async with signed_in(kube, user) as client:
        await allowed(kube, client, "v1/secrets")
        deployments = client.resource("apps/v1/deployments", namespace=kube.namespace)
        await deployments.subresource("scale").get("web")
        error = await refused(deployments.get("web"), 403)
        assert 'cannot get resource "deployments"' in str(error)
        error = await refused(deployments.subresource("status").get("web"), 403)
        assert 'cannot get resource "deployments/status"' in str(error)


@behaviour("rbac.wildcard", "A star stands for all verbs, resources or groups")
async def test_wildcards(kube: Kube) -> None:
    user = new_user()
    await grant(kube, user, {"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]})
    async with signed_in(kube, user) as client:
        maps = await allowed(kube, client)
        await maps.create(config_map("a"))
        await client.resource("apps/v1/deployments", namespace=kube.namespace).create(deployment())
        await refused(client.resource("v1/nodes").get("n"), 403)


@behaviour("rbac.group", "A binding may name a group")
async def test_groups(kube: Kube) -> None:
    group = f"group-{uuid.uuid4().hex[:8]}"
    await grant(kube, group, rule(["configmaps"], ["list"]), kind="Group")
    async with signed_in(kube, new_user(), group) as client:
        await allowed(kube, client)


@behaviour("rbac.cluster-role", "A RoleBinding may take its rules from a ClusterRole")
async def test_cluster_roles(kube: Kube) -> None:
    user = new_user()
    binding = {
        "metadata": {"name": user},
        "roleRef": {
            "apiGroup": RBAC.split("/", maxsplit=1)[0],
            "kind": "ClusterRole",
            "name": "view",
        },
        "subjects": [{"kind": "User", "name": user, "apiGroup": RBAC.split("/", maxsplit=1)[0]}],
    }
    await kube.of(f"{RBAC}/rolebindings").create(binding)
    async with signed_in(kube, user) as client:
        await allowed(kube, client)
        secrets = client.resource("v1/secrets", namespace=kube.namespace)
        await refused(secrets.get("s"), 403)


@behaviour("rbac.cluster-binding", "A ClusterRoleBinding grants in all namespaces")
async def test_cluster_bindings(kube: Kube) -> None:
    user = new_user()
    role = {"metadata": {"name": user}, "rules": [rule(["configmaps"], ["list"])]}
    await kube.cluster(f"{RBAC}/clusterroles").create(role)
    binding = {
        "metadata": {"name": user},
        "roleRef": {
            "apiGroup": RBAC.split("/", maxsplit=1)[0],
            "kind": "ClusterRole",
            "name": user,
        },
        "subjects": [{"kind": "User", "name": user, "apiGroup": RBAC.split("/", maxsplit=1)[0]}],
    }
    await kube.cluster(f"{RBAC}/clusterrolebindings").create(binding)
    async with signed_in(kube, user) as client:
        await allowed(kube, client)
        await names(client.resource("v1/configmaps"))


@behaviour(
    "rbac.aggregated-role", "A ClusterRole gathers the rules of those that its selector finds"
)
async def test_aggregated_roles(kube: Kube) -> None:
    name = new_user()
    roles = kube.cluster(f"{RBAC}/clusterroles")
    await roles.create(
        {
            "metadata": {"name": name},
            "aggregationRule": {"clusterRoleSelectors": [{"matchLabels": {"part-of": name}}]},
            "rules": [],
        }
    )
    given = rule(["configmaps"], ["get"])
    part = {"metadata": {"name": f"{name}-part", "labels": {"part-of": name}}, "rules": [given]}
    await roles.create(part)

    async def gathered() -> bool:
        return (await roles.get(name)).get("rules") == [given]

    await eventually(gathered)


@behaviour(
    "rbac.escalation",
    "A user can only grant the permissions that the user has",
    devcluster="Any user who may write a role may write any role: there is no escalation check.",
)
async def test_escalation(kube: Kube) -> None:
    user = new_user()
    await grant(
        kube,
        user,
        {
            "apiGroups": [RBAC.split("/", maxsplit=1)[0]],
            "resources": ["roles"],
            "verbs": ["create", "list"],
        },
        rule(["configmaps"], ["list"]),
    )
    async with signed_in(kube, user) as client:
        await allowed(kube, client)
        roles = client.resource(f"{RBAC}/roles", namespace=kube.namespace)
        ok: JsonObject = {"metadata": {"name": "ok"}, "rules": [rule(["configmaps"], ["list"])]}
        ok["rules"][0]["apiGroups"] = [""]
        await roles.create(ok)
        more: JsonObject = {"metadata": {"name": "more"}, "rules": [rule(["secrets"], ["get"])]}
        if kube.is_dev:
            await roles.create(more)
            return
        error = await refused(roles.create(more), 403, "Forbidden")
    assert "is attempting to grant RBAC permissions not currently held" in str(error)


@behaviour("rbac.role-ref", "A binding's role cannot be changed")
async def test_role_references_are_immutable(kube: Kube) -> None:
    user = new_user()
    await grant(kube, user, rule(["configmaps"], ["list"]))
    bindings = kube.of(f"{RBAC}/rolebindings")
    patch = MergePatch({"roleRef": {"name": "other"}})
    error = await refused(bindings.patch(f"for-{user}", patch), 422, "Invalid")
    assert "cannot change roleRef" in str(error)


@behaviour("review.self-access", "SelfSubjectAccessReview tells what the caller may do")
async def test_self_access_reviews(kube: Kube) -> None:
    user = new_user()
    await grant(kube, user, rule(["configmaps"], ["list"]))
    path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    tls = tls_of_kubeconfig(kube.server.kubeconfig_for(user))

    async def ask(verb: str) -> bool:
        attributes = {"namespace": kube.namespace, "verb": verb, "resource": "configmaps"}
        async with raw_for(kube.server.url, tls) as raw:
            body = {"spec": {"resourceAttributes": attributes}}
            answer = await raw.send("POST", path, body)
        assert answer.status == 201, answer
        return bool(answer.json["status"]["allowed"])

    await eventually(lambda: ask("list"))
    assert not await ask("delete")


@behaviour("review.subject-access", "SubjectAccessReview answers for another user")
async def test_subject_access_reviews(kube: Kube) -> None:
    user = new_user()
    await grant(kube, user, rule(["configmaps"], ["list"]))
    reviews = kube.cluster("authorization.k8s.io/v1/subjectaccessreviews")
    attributes = {"namespace": kube.namespace, "verb": "list", "resource": "configmaps"}

    async def may() -> bool:
        body = {"spec": {"user": user, "resourceAttributes": attributes}}
        return bool((await reviews.create(body))["status"]["allowed"])

    await eventually(may)


@behaviour("review.self-subject", "SelfSubjectReview tells who the caller is")
async def test_self_subject_reviews(kube: Kube) -> None:
    user = new_user()
    async with signed_in(kube, user, "some-group") as client:
        reviews = client.resource("authentication.k8s.io/v1/selfsubjectreviews")
        who = (await reviews.create({}))["status"]["userInfo"]
    assert who["username"] == user
    assert set(who["groups"]) == {"some-group", "system:authenticated"}


@behaviour("review.rules", "SelfSubjectRulesReview lists what the caller may do in a namespace")
async def test_rules_reviews(kube: Kube) -> None:
    user = new_user()
    await grant(kube, user, rule(["configmaps"], ["list"]))
    async with signed_in(kube, user) as client:
        await allowed(kube, client)
        reviews = client.resource("authorization.k8s.io/v1/selfsubjectrulesreviews")
        found = (await reviews.create({"spec": {"namespace": kube.namespace}}))["status"]
    mine = [entry for entry in found["resourceRules"] if entry["resources"] == ["configmaps"]]
    assert [entry["verbs"] for entry in mine] == [["list"]]


@behaviour("impersonation.user", "An administrator can impersonate a user with groups")
async def test_impersonation(kube: Kube) -> None:
    user = new_user()
    config = ClientConfig.from_kubeconfig(kube.server.kubeconfig)
    other = dataclasses.replace(config, impersonate=Impersonation(user=user, groups=("some",)))
    async with Client(other) as client:
        reviews = client.resource("authentication.k8s.io/v1/selfsubjectreviews")
        who = (await reviews.create({}))["status"]["userInfo"]
        assert who["username"] == user
        assert set(who["groups"]) == {"some", "system:authenticated"}
        maps = client.resource("v1/configmaps", namespace=kube.namespace)
        error = await refused(maps.get("a"), 403)
    assert f'User "{user}" cannot get' in str(error)


@behaviour("impersonation.forbidden", "Impersonation must be granted")
async def test_impersonation_is_granted(kube: Kube) -> None:
    user = new_user()
    tls = tls_of_kubeconfig(kube.server.kubeconfig_for(user))
    async with raw_for(kube.server.url, tls) as raw:
        headers = {"Impersonate-User": "root"}
        answer = await raw.send("GET", kube.path("v1/configmaps"), headers=headers)
    assert answer.status == 403
    assert f'User "{user}" cannot impersonate' in answer.json["message"]


async def token_of(kube: Kube, account: str = "default", **spec: Any) -> str:
    tokens = kube.of("v1/serviceaccounts").subresource("token")
    return str((await tokens.create(account, {"spec": spec}))["status"]["token"])


async def review(kube: Kube, token: str, *audiences: str) -> JsonObject:
    reviews = kube.cluster("authentication.k8s.io/v1/tokenreviews")
    spec: JsonObject = {"token": token}
    if audiences:
        spec["audiences"] = list(audiences)
    return dict((await reviews.create({"spec": spec}))["status"])


@behaviour("token.use", "A ServiceAccount's token says who it is, and RBAC knows it")
async def test_tokens_are_identities(kube: Kube) -> None:
    token = await token_of(kube)
    await grant(kube, "default", rule(["configmaps"], ["list"]), kind="ServiceAccount")
    tls = tls_of_kubeconfig(kube.server.kubeconfig, certificate=False)
    async with raw_for(kube.server.url, tls, token) as raw:
        answer = await raw.send("POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", {})
        who = answer.json["status"]["userInfo"]
        assert who["username"] == f"system:serviceaccount:{kube.namespace}:default"
        assert set(who["groups"]) == {
            "system:serviceaccounts",
            f"system:serviceaccounts:{kube.namespace}",
            "system:authenticated",
        }

        async def may() -> bool:
            return (await raw.get(kube.path("v1/configmaps"))).status == 200

        await eventually(may)
        assert (await raw.get(kube.path("v1/secrets"))).status == 403


@behaviour("token.wrong", "A malformed token is 401 Unauthorized")
async def test_wrong_tokens(kube: Kube) -> None:
    tls = tls_of_kubeconfig(kube.server.kubeconfig, certificate=False)
    async with raw_for(kube.server.url, tls, "nonsense") as raw:
        answer = await raw.get("/version")
    assert (answer.status, answer.json["reason"]) == (401, "Unauthorized")


@behaviour("token.review", "TokenReview tells whose a token is")
async def test_token_reviews(kube: Kube) -> None:
    found = await review(kube, await token_of(kube))
    assert found["authenticated"] is True
    assert found["user"]["username"] == f"system:serviceaccount:{kube.namespace}:default"
    assert found["audiences"]
    assert not (await review(kube, "nonsense")).get("authenticated", False)


@behaviour("token.audience", "A token is valid for its own audience only")
async def test_audiences(kube: Kube) -> None:
    token = await token_of(kube, audiences=["them"])
    assert (await review(kube, token, "them"))["audiences"] == ["them"]
    assert not (await review(kube, token, "us")).get("authenticated", False)
    tls = tls_of_kubeconfig(kube.server.kubeconfig, certificate=False)
    async with raw_for(kube.server.url, tls, token) as raw:
        assert (await raw.get("/version")).status == 401


@behaviour("token.bound", "A token that is bound to a pod dies with it")
async def test_bound_tokens(kube: Kube) -> None:
    made = await kube.pods.create(pod("p", schedulerName="nobody"))
    reference = {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": made["metadata"]["uid"]}
    token, other = [await token_of(kube, boundObjectRef=reference) for _ in range(2)]
    found = await review(kube, other)
    assert found["authenticated"] is True
    extra = found["user"]["extra"]
    assert extra["authentication.kubernetes.io/pod-name"] == ["p"]
    await kube.pods.delete("p", grace_period=0)

    # Not the one that was looked at: servers remember for seconds what they have checked.
    async def dead() -> bool:
        return not (await review(kube, token)).get("authenticated", False)

    await eventually(dead, timeout=30)


@behaviour(
    "token.account-deleted", "A token dies with its ServiceAccount, and a new one has a new uid"
)
async def test_tokens_of_deleted_accounts(kube: Kube) -> None:
    accounts = kube.of("v1/serviceaccounts")
    await accounts.create({"metadata": {"name": "brief"}})
    token = await token_of(kube, "brief")
    await accounts.delete("brief")
    await accounts.create({"metadata": {"name": "brief"}})

    async def dead() -> bool:
        return not (await review(kube, token)).get("authenticated", False)

    await eventually(dead, timeout=30)


@behaviour("token.keys", "The issuer's public keys are published for programs that verify tokens")
async def test_published_keys(kube: Kube) -> None:
    found = (await kube.raw.get("/.well-known/openid-configuration")).json
    assert found["issuer"].startswith("https://")
    assert found["jwks_uri"].endswith("/openid/v1/jwks")
    keys = (await kube.raw.get("/openid/v1/jwks", accept="*/*")).json["keys"]
    assert keys
    assert {key["use"] for key in keys} == {"sig"}
