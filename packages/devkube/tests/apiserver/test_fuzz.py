"""No request, whatever its path, parameters and body, makes the server fail."""

from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.apiserver.harness import DEFINITIONS, connected, definition, deployment, pod, widget

from devkube.apiserver import ApiServer

pytestmark = pytest.mark.slow

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 70000),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=6),
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.text(max_size=5) | st.sampled_from(["name", "spec", "metadata", "$patch", "labels"]),
            inner,
            max_size=3,
        ),
    ),
    max_leaves=8,
)
CORE = "/api/v1/namespaces/default"
SPEC = {"containers": [{"name": "a", "image": "b", "env": [{"name": "e", "value": "v"}]}]}
SELECTED = {
    "selector": {"matchLabels": {"a": "b"}},
    "template": {"metadata": {"labels": {"a": "b"}}, "spec": SPEC},
}
# Where objects live, and one that is valid there.
SEEDS = {
    f"{CORE}/pods": pod("f", nodeName="n"),
    f"{CORE}/services": {
        "metadata": {"name": "f"},
        "spec": {"type": "NodePort", "ports": [{"port": 80}]},
    },
    f"{CORE}/configmaps": {"metadata": {"name": "f", "labels": {"a": "b"}}, "data": {"a": "b"}},
    f"{CORE}/secrets": {"metadata": {"name": "f"}, "data": {"a": "Yg=="}, "stringData": {"c": "d"}},
    f"{CORE}/events": {
        "metadata": {"name": "f"},
        "involvedObject": {"kind": "Pod", "name": "p"},
        "count": 1,
    },
    f"{CORE}/serviceaccounts": {"metadata": {"name": "f"}},
    "/apis/apps/v1/namespaces/default/deployments": deployment("f"),
    "/apis/apps/v1/namespaces/default/statefulsets": {"metadata": {"name": "f"}, "spec": SELECTED},
    "/apis/apps/v1/namespaces/default/replicasets": {"metadata": {"name": "f"}, "spec": SELECTED},
    "/apis/batch/v1/namespaces/default/jobs": {
        "metadata": {"name": "f"},
        "spec": {"template": {"spec": {**SPEC, "restartPolicy": "Never"}}},
    },
    "/apis/autoscaling/v1/namespaces/default/horizontalpodautoscalers": {
        "metadata": {"name": "f"},
        "spec": {
            "scaleTargetRef": {"kind": "D", "name": "n"},
            "maxReplicas": 2,
            "targetCPUUtilizationPercentage": 3,
        },
    },
    "/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers": {
        "metadata": {"name": "f"},
        "spec": {"scaleTargetRef": {"kind": "D", "name": "n"}, "maxReplicas": 2},
    },
    "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices": {
        "metadata": {"name": "f"},
        "addressType": "IPv4",
        "endpoints": [{"addresses": ["10.0.0.1"]}],
        "ports": [{"port": 1}],
    },
    "/apis/events.k8s.io/v1/namespaces/default/events": {"metadata": {"name": "f"}, "note": "x"},
    "/apis/coordination.k8s.io/v1/namespaces/default/leases": {
        "metadata": {"name": "f"},
        "spec": {"leaseDurationSeconds": 3, "renewTime": "2024-01-01T00:00:00.000000Z"},
    },
    "/apis/policy/v1/namespaces/default/poddisruptionbudgets": {
        "metadata": {"name": "f"},
        "spec": {"selector": {"matchExpressions": [{"key": "a", "operator": "Exists"}]}},
    },
    "/apis/networking.k8s.io/v1/namespaces/default/ingresses": {
        "metadata": {"name": "f"},
        "spec": {"rules": [{"host": "x"}]},
    },
    "/apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings": {
        "metadata": {"name": "f"},
        "roleRef": {"kind": "Role", "name": "r"},
        "subjects": [{"kind": "User", "name": "u"}],
    },
    "/apis/authentication.k8s.io/v1/tokenreviews": {"spec": {"token": "x"}},
    "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews": {
        "spec": {"resourceAttributes": {"verb": "get"}}
    },
    "/apis/example.com/v1/namespaces/default/widgets": widget(
        "f", items=[{"name": "a"}], tags=["x"], port=1
    ),
    "/api/v1/namespaces": {"metadata": {"name": "f"}},
    "/api/v1/nodes": {"metadata": {"name": "f"}, "status": {"capacity": {"cpu": "1"}}},
    DEFINITIONS: json.loads(
        json.dumps(definition())
        .replace("widgets", "gadgets")
        .replace("Widget", "Gadget")
        .replace('"wd"', '"gd"')
    ),
}
OPTIONS = {
    "preconditions": {"uid": "x"},
    "gracePeriodSeconds": 3,
    "propagationPolicy": "Orphan",
    "dryRun": ["All"],
}
PATCHES = [
    [{"op": "add", "path": "/metadata/labels", "value": {"a": "b"}}],
    [
        {"op": "replace", "path": "/spec", "value": {}},
        {"op": "test", "path": "/kind", "value": "x"},
    ],
    {"metadata": {"labels": {"a": None}, "finalizers": ["a.b/c"]}},
    {"spec": {"replicas": 3, "ports": [{"port": 81, "$patch": "delete"}]}},
    {"spec": {"template": {"spec": {"containers": [{"name": "z", "image": "y"}]}}}},
    {"$setElementOrder/items": [], "$retainKeys": ["metadata"], "$patch": "replace"},
]


def places(value, path=()):
    yield path
    if isinstance(value, dict):
        for key, child in value.items():
            yield from places(child, (*path, key))
    elif isinstance(value, list):
        for index, child in enumerate(value):
            yield from places(child, (*path, index))


def planted(body, path, value):
    if not path:
        return value
    body = json.loads(json.dumps(body))
    target = body
    for key in path[:-1]:
        target = target[key]
    target[path[-1]] = value
    return body


def identified(base, seed):
    """Give a body the type that its path has, as clients do."""
    parts = base.split("/")
    version = parts[2] if parts[1] == "api" else f"{parts[2]}/{parts[3]}"
    kinds_by_plural = {
        "deployments": "Deployment",
        "widgets": "Widget",
        "configmaps": "ConfigMap",
        "pods": "Pod",
        "services": "Service",
    }
    kind = kinds_by_plural.get(parts[-1])
    return {"apiVersion": version, "kind": kind, **seed} if kind else seed


@st.composite
def requests(draw):
    base = draw(st.sampled_from(sorted(SEEDS)))
    seed = identified(base, SEEDS[base])
    method = draw(st.sampled_from(["GET", "POST", "PUT", "PATCH", "PATCH", "DELETE"]))
    body = draw(st.sampled_from([OPTIONS] if method == "DELETE" else [seed, seed, *PATCHES]))
    for _ in range(draw(st.integers(0, 3))):
        body = planted(body, draw(st.sampled_from(list(places(body)))), draw(values))
    tails = [
        "",
        "",
        "",
        "/status",
        "/scale",
        "/binding",
        "/finalize",
        "/token",
        "/nonsense",
    ]
    name = seed.get("metadata", {}).get("name", "f")
    target = (
        base
        if method == "POST" and draw(st.booleans())
        else f"{base}/{name}{draw(st.sampled_from(tails))}"
    )
    return base, seed, method, target, body


kinds = st.sampled_from(
    [
        "application/json",
        "application/yaml",
        "application/merge-patch+json",
        "application/strategic-merge-patch+json",
        "application/json-patch+json",
        "application/apply-patch+yaml",
        "application/vnd.kubernetes.protobuf",
        "text/plain",
    ]
)
accepts = st.sampled_from(
    [
        "application/json",
        "application/yaml",
        "application/json;as=Table;v=v1;g=meta.k8s.io",
        "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io",
        "*/*",
    ]
)
queries = st.dictionaries(
    st.sampled_from(
        [
            "labelSelector",
            "fieldSelector",
            "limit",
            "continue",
            "resourceVersion",
            "resourceVersionMatch",
            "dryRun",
            "fieldValidation",
            "fieldManager",
            "force",
            "propagationPolicy",
            "gracePeriodSeconds",
            "includeObject",
        ]
    ),
    st.sampled_from(
        [
            "",
            "0",
            "1",
            "true",
            "All",
            "Strict",
            "Exact",
            "NotOlderThan",
            "Object",
            "a=b",
            "metadata.name=f",
            "-1",
            "é",
        ]
    ),
    max_size=3,
)


@pytest.fixture
async def fuzzed():
    async with ApiServer() as server, connected(server) as kube:
        await kube.create(DEFINITIONS, definition())
        yield kube


THOROUGH = settings.get_current_profile_name() == "thorough"


@settings(
    max_examples=(5 if THOROUGH else 2) * settings().max_examples,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(request=requests(), kind=kinds, accept=accepts, query=queries)
async def test_no_request_makes_the_server_fail(fuzzed, request, kind, accept, query):
    base, seed, method, target, body = request
    await fuzzed.create(base, seed)
    if kind == "application/apply-patch+yaml":
        query = {"fieldManager": "fuzz", **query}
    sent = kind if method == "PATCH" else "application/json"
    reply = await fuzzed.send(method, target, body, kind=sent, accept=accept, **query)
    assert reply.code < 500 or reply.code in (501, 504), reply
    for path in (base, f"{base}/f"):
        shown = await fuzzed.send("GET", path, accept=accept)
        assert shown.code < 500, shown


@settings(
    max_examples=(3 if THOROUGH else 1) * settings().max_examples,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(body=st.binary(max_size=60), kind=kinds, magic=st.booleans(), patch=st.booleans())
async def test_no_bytes_make_the_server_fail(fuzzed, body, kind, magic, patch):
    path = "/api/v1/namespaces/default/configmaps"
    data = b"k8s\x00" + body if magic else body
    method, target = ("PATCH", f"{path}/f") if patch else ("POST", path)
    reply = await fuzzed.send(method, target, data, kind=kind, fieldManager="fuzz")
    assert reply.code < 500, reply
