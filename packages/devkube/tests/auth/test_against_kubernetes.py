"""The same roles as Kubernetes, and the same answers to the same questions."""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import Any

import pytest
from tests.auth.support import (
    CLUSTER_ROLE_BINDINGS,
    CLUSTER_ROLES,
    RBAC,
    AuthCluster,
    binding,
    role,
    user,
)

from tests.controlplane.rig import ControlPlane
from tests.waiting import eventually

pytestmark = pytest.mark.controlplane
OURS = "devkube:"
REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"


def facts(obj: dict[str, Any]) -> dict[str, Any]:
    """What an object says, without who made it when."""
    metadata = obj["metadata"]
    return {
        "labels": metadata.get("labels"),
        "annotations": metadata.get("annotations"),
        **{
            name: obj[name]
            for name in ("rules", "aggregationRule", "subjects", "roleRef")
            if obj.get(name)
        },
    }


async def listed(source: Any, path: str) -> dict[str, dict[str, Any]]:
    items = (await source(path))["items"]
    return {
        f"{item['metadata'].get('namespace', '')}/{item['metadata']['name']}": facts(item)
        for item in items
        if not item["metadata"]["name"].startswith(OURS)
        and (item["metadata"].get("labels") or {}).get("kubernetes.io/bootstrapping")
    }


@pytest.mark.parametrize(
    "path", [CLUSTER_ROLES, CLUSTER_ROLE_BINDINGS, f"{RBAC}/roles", f"{RBAC}/rolebindings"]
)
async def test_a_cluster_begins_with_the_same(
    cluster: AuthCluster, controlplane: ControlPlane, path: str
) -> None:
    async def real(path: str) -> Any:
        answer = await asyncio.to_thread(controlplane.api.request, "GET", path)
        return answer.json

    async def dev(path: str) -> Any:
        return (await cluster.admin.get(path)).body

    mine = await listed(dev, path)
    wanted: dict[str, dict[str, Any]] = {}

    async def the_same() -> bool:
        nonlocal wanted
        wanted = await listed(real, path)
        return mine == wanted

    # The real one fills aggregated roles in the background.
    with contextlib.suppress(AssertionError):
        await eventually(the_same, timeout=10, every=0.5)
    assert len(wanted) > 3
    assert mine == wanted  # with pytest's difference where they are not the same


VERBS = ["get", "list", "create", "*"]
GROUPS = ["", "apps", "*"]
RESOURCES = ["pods", "pods/log", "*/log", "deployments", "*"]
URLS = ["/healthz", "/healthz/*", "/a*", "*"]


def some_rule(chance: random.Random) -> dict[str, Any]:
    verbs = chance.sample(VERBS, chance.randint(1, 2))
    if chance.random() < 0.2:
        return {"verbs": verbs, "nonResourceURLs": chance.sample(URLS, 1)}
    made: dict[str, Any] = {
        "verbs": verbs,
        "apiGroups": chance.sample(GROUPS, chance.randint(1, 2)),
        "resources": chance.sample(RESOURCES, chance.randint(1, 2)),
    }
    if chance.random() < 0.3:
        made["resourceNames"] = chance.sample(["a", "b"], 1)
    return made


def some_question(chance: random.Random, who: str) -> dict[str, Any]:
    if chance.random() < 0.2:
        path = chance.choice(["/healthz", "/healthz/etcd", "/api", "/abc", "/x"])
        about = {"verb": chance.choice(["get", "list"]), "path": path}
        return {"user": who, "nonResourceAttributes": about}
    resource, _, subresource = chance.choice(
        ["pods", "pods/log", "deployments", "deployments/log"]
    ).partition("/")
    about = {
        "verb": chance.choice(["get", "list", "create", "delete"]),
        "group": chance.choice(["", "apps"]),
        "resource": resource,
        "subresource": subresource,
        "name": chance.choice(["", "a", "b", "c"]),
        "namespace": chance.choice(["", "default", "kube-system"]),
    }
    return {"user": who, "resourceAttributes": about}


async def test_random_questions_get_the_same_answers(
    cluster: AuthCluster, controlplane: ControlPlane
) -> None:
    chance = random.Random(11)
    mark = f"differential-{random.SystemRandom().randrange(10**9)}"
    people = [f"{mark}-{number}" for number in range(8)]

    async def real(method: str, path: str, body: dict[str, Any]) -> Any:
        return await asyncio.to_thread(controlplane.api.request, method, path, body)

    async def both(path: str, body: dict[str, Any]) -> None:
        made = await cluster.admin.create(path, body)
        answer = await real("POST", path, body)
        assert (made.code, answer.status) == (201, 201), (made, answer)

    for who in people:
        await both(CLUSTER_ROLES, role(who, *[some_rule(chance) for _ in range(2)]))
        if chance.random() < 0.5:
            await both(CLUSTER_ROLE_BINDINGS, binding(who, who, user(who)))
        else:
            await both(f"{RBAC}/namespaces/default/rolebindings", binding(who, who, user(who)))
    questions = [some_question(chance, who) for who in people for _ in range(25)]
    mine = [(await cluster.admin.create(REVIEWS, {"spec": spec}))["status"] for spec in questions]

    async def differences() -> list[Any]:
        theirs = [
            (await real("POST", REVIEWS, {"spec": spec})).json["status"] for spec in questions
        ]
        both = zip(questions, mine, theirs, strict=True)
        return [(spec, ours, other) for spec, ours, other in both if ours != other]

    # The real authorizer learns of roles from a watch, a moment later.
    different: list[Any] = []

    async def agree() -> bool:
        different[:] = await differences()
        return not different

    with contextlib.suppress(AssertionError):
        await eventually(agree, timeout=10, every=0.5)
    assert different == []
    assert 20 < sum(status["allowed"] for status in mine) < len(mine) - 20
