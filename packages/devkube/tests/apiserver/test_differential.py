"""The same requests to the real API server and to ours: the same answers.

Compared are the status code, the whole `Status` of a refusal, and of a success the object without
what differs by nature (uids, versions, times). Kinds are chosen that no controller touches.
"""

from __future__ import annotations

import asyncio
import copy
import json
import uuid

import pytest
from tests.apiserver.harness import (
    APPLY,
    DEFINITIONS,
    JSON_PATCH,
    MERGE,
    STRATEGIC,
    definition,
    deployment,
    widget,
)

from tests.waiting import eventually

pytestmark = [pytest.mark.controlplane, pytest.mark.slow]
NATURAL = ("uid", "resourceVersion", "creationTimestamp", "time", "lastTransitionTime", "selfLink")
DRY = "?dryRun=All"


def comparable(value):
    """Drop what differs by nature; owners become a map, since their order is by time."""
    if isinstance(value, dict):
        kept = {key: comparable(child) for key, child in value.items() if key not in NATURAL}
        if "managedFields" in kept:
            kept["managedFields"] = {
                (entry["manager"], entry["operation"], entry.get("subresource", "")): entry[
                    "fieldsV1"
                ]
                for entry in kept["managedFields"]
            }
        return kept
    return [comparable(item) for item in value] if isinstance(value, list) else value


def differences(ours, real, path=""):
    """Yield where two values differ, and how."""
    if isinstance(ours, dict) and isinstance(real, dict):
        for key in ours.keys() | real.keys():
            where = f"{path}.{key}"
            yield from differences(ours.get(key, "(absent)"), real.get(key, "(absent)"), where)
    elif ours != real:
        yield f"{path}: ours {ours!r}, real {real!r}"


class ServerPair:
    """Both servers, and a namespace of the test's own in each."""

    def __init__(self, real, ours, namespace: str) -> None:
        self._real = real
        self._ours = ours
        self.namespace = namespace

    async def send(self, method: str, path: str, body=None, kind: str = "application/json"):
        path = path.replace("NS", self.namespace)
        if method in ("POST", "PUT", "PATCH") and "fieldManager" not in path:
            path += f"{'&' if '?' in path else '?'}fieldManager=test"
        answer = await asyncio.to_thread(
            self._real.api.request, method, path, body, content_type=kind
        )
        reply = await self._ours.send(method, path, body, kind=kind)
        # For a moment after a definition was taken, its paths are unknown: in plain words, not in JSON.
        known = answer.text[:1] in "{["
        return reply, answer.status, json.loads(answer.text) if known else {}

    async def agree(self, method: str, path: str, body=None, kind: str = "application/json"):
        reply, code, real = await self.send(method, path, body, kind)
        found = list(differences(comparable(reply.body), comparable(real)))
        assert (reply.code, found) == (code, []), f"{method} {path}"
        return reply


@pytest.fixture
async def pair(controlplane, kube):
    name = f"diff-{uuid.uuid4().hex[:8]}"
    found = ServerPair(controlplane, kube, name)
    _, code, _ = await found.send("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
    assert code == 201
    yield found
    await found.send("DELETE", "/api/v1/namespaces/NS")


DEPLOYMENTS = "/apis/apps/v1/namespaces/NS/deployments"
CONFIG_MAPS = "/api/v1/namespaces/NS/configmaps"
TEMPLATES = "/api/v1/namespaces/NS/podtemplates"
SERVICES = "/api/v1/namespaces/NS/services"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/NS/leases"
SLICES = "/apis/discovery.k8s.io/v1/namespaces/NS/endpointslices"


def templated(*containers, **spec):
    body = deployment()
    body["spec"]["template"]["spec"] = {"containers": list(containers), **spec}
    return body


REFUSED = {
    "no selector": (DEPLOYMENTS, deployment(selector=None)),
    "other labels": (DEPLOYMENTS, deployment(selector={"matchLabels": {"x": "y"}})),
    "bad name": (DEPLOYMENTS, deployment("Bad_Name")),
    "negative replicas": (DEPLOYMENTS, deployment(replicas=-1)),
    "text replicas": (DEPLOYMENTS, deployment(replicas="x")),
    "too many replicas": (DEPLOYMENTS, deployment(replicas=2**40)),
    "no containers": (DEPLOYMENTS, templated()),
    "no image": (DEPLOYMENTS, templated({"name": "a"})),
    "no container name": (DEPLOYMENTS, templated({"image": "a"})),
    "two of a name": (
        DEPLOYMENTS,
        templated({"name": "a", "image": "x"}, {"name": "a", "image": "y"}),
    ),
    "port 0": (
        DEPLOYMENTS,
        templated({"name": "a", "image": "x", "ports": [{"containerPort": 0}]}),
    ),
    "empty probe": (DEPLOYMENTS, templated({"name": "a", "image": "x", "livenessProbe": {}})),
    "bad pull policy": (
        DEPLOYMENTS,
        templated({"name": "a", "image": "x", "imagePullPolicy": "No"}),
    ),
    "restart policy": (DEPLOYMENTS, templated({"name": "a", "image": "x"}, restartPolicy="Never")),
    "lost mount": (
        DEPLOYMENTS,
        templated({"name": "a", "image": "x", "volumeMounts": [{"name": "v", "mountPath": "/v"}]}),
    ),
    "quantity": (
        DEPLOYMENTS,
        templated({"name": "a", "image": "x", "resources": {"limits": {"cpu": "z"}}}),
    ),
    "no ports": (SERVICES, {"metadata": {"name": "s"}, "spec": {"ports": []}}),
    "unnamed ports": (
        SERVICES,
        {"metadata": {"name": "s"}, "spec": {"ports": [{"port": 1}, {"port": 2}]}},
    ),
    "port out of range": (
        SERVICES,
        {"metadata": {"name": "s"}, "spec": {"ports": [{"port": 70000}]}},
    ),
    "service type": (
        SERVICES,
        {"metadata": {"name": "s"}, "spec": {"type": "X", "ports": [{"port": 1}]}},
    ),
    "slice family": (SLICES, {"metadata": {"name": "s"}, "addressType": "X", "endpoints": []}),
    "slice without": (
        SLICES,
        {"metadata": {"name": "s"}, "addressType": "IPv4", "endpoints": [{}]},
    ),
    "lease": (LEASES, {"metadata": {"name": "l"}, "spec": {"leaseDurationSeconds": 0}}),
    "lease time": (LEASES, {"metadata": {"name": "l"}, "spec": {"renewTime": "noon"}}),
    "key": (CONFIG_MAPS, {"metadata": {"name": "c"}, "data": {"a b": ""}}),
    "data type": (CONFIG_MAPS, {"metadata": {"name": "c"}, "data": {"a": 1}}),
    "label": (CONFIG_MAPS, {"metadata": {"name": "c", "labels": {"a b": "c d"}}}),
    "no name": (CONFIG_MAPS, {"data": {}}),
    "other namespace": (CONFIG_MAPS, {"metadata": {"name": "c", "namespace": "other"}}),
}


@pytest.mark.parametrize("name", REFUSED)
async def test_mistakes_are_refused_with_the_same_messages(pair, name):
    path, body = REFUSED[name]
    reply = await pair.agree("POST", path + DRY, body)
    assert reply.code >= 400


async def test_objects_are_filled_in_alike(pair):
    container = {"name": "a", "image": "x", "readinessProbe": {"httpGet": {"port": 80}}}
    await pair.agree("POST", f"{DEPLOYMENTS}{DRY}&fieldManager=me", templated(container))
    await pair.agree(
        "POST", f"{CONFIG_MAPS}?fieldManager=me", {"metadata": {"name": "c"}, "data": {"a": "b"}}
    )
    await pair.agree(
        "POST",
        f"{SLICES}?fieldManager=me",
        {
            "metadata": {"name": "s"},
            "addressType": "IPv4",
            "endpoints": [{"addresses": ["10.1.2.3"]}],
            "ports": [{"port": 80}],
        },
    )
    await pair.agree("POST", CONFIG_MAPS, {"metadata": {"name": "c"}})
    await pair.agree("GET", f"{CONFIG_MAPS}/none")


def template(*env: tuple[str, str], image: str = "i:1"):
    values = [{"name": name, "value": value} for name, value in env]
    container = {"name": "web", "image": image, "env": values, "ports": [{"containerPort": 80}]}
    return {
        "apiVersion": "v1",
        "kind": "PodTemplate",
        "metadata": {"name": "t", "labels": {"app": "web"}},
        "template": {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [container]}},
    }


async def test_apply_owns_conflicts_forces_and_removes_alike(pair):
    async def apply(body, manager, extra=""):
        return await pair.agree(
            "PATCH", f"{TEMPLATES}/t?fieldManager={manager}{extra}", body, APPLY
        )

    await apply(template(("A", "1"), ("B", "2")), "one")
    await apply(template(("A", "1"), ("B", "2")), "one")
    await apply(template(("B", "2"), ("C", "3")), "one")
    refused = await apply(template(("B", "9"), image="i:2"), "two")
    assert refused.code == 409
    await apply(template(("B", "9"), image="i:2"), "two", "&force=true")
    await apply(template(("C", "3")), "one", "&force=true")
    shared = {
        "apiVersion": "v1",
        "kind": "PodTemplate",
        "metadata": {"name": "t", "annotations": {"x": "y"}},
    }
    await apply(shared, "three")
    await apply({**shared, "metadata": {"name": "t"}}, "three")
    patch = {
        "template": {
            "spec": {"containers": [{"name": "web", "image": "i:3"}, {"name": "n", "image": "n"}]}
        }
    }
    await pair.agree("PATCH", f"{TEMPLATES}/t?fieldManager=hand", patch, STRATEGIC)
    await apply(template(("C", "3")), "one")
    reset = [{"op": "replace", "path": "/metadata/managedFields", "value": [{}]}]
    await pair.agree("PATCH", f"{TEMPLATES}/t", reset, JSON_PATCH)
    await apply(template(("Z", "0")), "four")


async def test_patches_change_alike(pair):
    await pair.agree("POST", TEMPLATES, template(("A", "1"), ("B", "2"), ("C", "3")))
    env = {
        "$setElementOrder/env": [{"name": "C"}, {"name": "A"}, {"name": "N"}],
        "env": [{"name": "B", "$patch": "delete"}, {"name": "N", "value": "n"}],
        "name": "web",
    }
    for body, kind in (
        ({"template": {"spec": {"containers": [env]}}}, STRATEGIC),
        ({"metadata": {"labels": {"app": None, "tier": "x"}}}, MERGE),
        ([{"op": "add", "path": "/metadata/annotations", "value": {"a": "b"}}], JSON_PATCH),
        (
            {"template": {"spec": {"nodeSelector": {"a": "b"}, "volumes": [{"name": "v"}]}}},
            STRATEGIC,
        ),
        ({"template": {"spec": {"nodeSelector": {"$patch": "replace", "c": "d"}}}}, STRATEGIC),
    ):
        await pair.agree("PATCH", f"{TEMPLATES}/t", body, kind)


async def test_deletion_waits_and_ends_alike(pair):
    body = {"metadata": {"name": "c", "finalizers": ["example.com/hold"]}}
    await pair.agree("POST", CONFIG_MAPS, body)
    reply, code, real = await pair.send(
        "DELETE", f"{CONFIG_MAPS}/c", {"propagationPolicy": "Foreground"}
    )
    assert (reply.code, sorted(reply["metadata"])) == (code, sorted(real["metadata"]))
    assert reply["metadata"]["finalizers"] == real["metadata"]["finalizers"]
    _, code, _ = await pair.send(
        "PATCH", f"{CONFIG_MAPS}/c", {"metadata": {"finalizers": None}}, MERGE
    )
    assert code == 200
    await pair.agree("GET", f"{CONFIG_MAPS}/c")
    await pair.agree("DELETE", f"{CONFIG_MAPS}/c")


async def test_custom_objects_are_judged_alike(pair):
    group = f"{pair.namespace}.example.com"
    body = json.loads(json.dumps(definition()).replace("example.com", group))
    reply, code, _ = await pair.send("POST", DEFINITIONS, body)
    assert (reply.code, code) == (201, 201)
    path = f"/apis/{group}/v1/namespaces/NS/widgets"

    async def served() -> bool:
        return (await pair.send("GET", path))[1] == 200

    await eventually(served, f"{path} is served", timeout=20)  # the real server has no event for it

    def made(**spec):
        found = copy.deepcopy(widget(**spec))
        found["apiVersion"] = f"{group}/v1"
        return found

    await pair.agree(
        "POST", f"{path}?fieldManager=me", made(items=[{"name": "a"}], extra={"x": {"y": 1}}, foo=1)
    )
    refused: list[dict[str, object]] = [
        {"size": "huge"},
        {"size": None},
        {"note": "toolong"},
        {"items": [{"value": "x"}]},
        {"items": [{"name": "a"}, {"name": "a"}]},
        {"tags": ["x", "x"]},
        {"port": {}},
        {"nested": 1},
    ]
    for spec in refused:
        reply = await pair.agree("POST", path + DRY, made(**spec))
        assert reply.code == 422
    await pair.agree("POST", f"{path}{DRY}&fieldValidation=Strict", made(foo=1))
    await pair.agree(
        "PATCH", f"{path}/w/status", {"status": {"replicas": 3, "selector": "a=b"}}, MERGE
    )
    await pair.agree("GET", f"{path}/w/scale")
    await pair.agree("PATCH", f"{path}/w?fieldManager=two&force=true", made(tags=["x"]), APPLY)
    await pair.agree("PUT", f"{path}/w", made())
    await pair.send("DELETE", f"{DEFINITIONS}/widgets.{group}")
