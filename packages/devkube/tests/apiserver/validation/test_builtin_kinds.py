"""Kubernetes' own kinds: what is filled in, what is refused, what is fixed."""

from __future__ import annotations

import pytest
from tests.apiserver.harness import CONFIG_MAPS, DEPLOYMENTS, deployment, pod

PODS = "/api/v1/namespaces/default/pods"
SERVICES = "/api/v1/namespaces/default/services"
SLICES = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
SECRETS = "/api/v1/namespaces/default/secrets"


def container(**extra):
    return {"containers": [{"name": "a", "image": "b", **extra}]}


def templated(**spec):
    body = deployment()
    body["spec"]["template"]["spec"] = spec
    return body


@pytest.mark.parametrize(
    ("path", "body", "field", "message"),
    [
        (DEPLOYMENTS, deployment("Bad_Name"), "metadata.name", "Invalid value"),
        (
            DEPLOYMENTS,
            deployment(replicas=-1),
            "spec.replicas",
            "must be greater than or equal to 0",
        ),
        (DEPLOYMENTS, deployment(selector=None), "spec.selector", "Required value"),
        (
            DEPLOYMENTS,
            deployment(selector={"matchLabels": {"x": "y"}}),
            "spec.template.metadata.labels",
            "`selector` does not match template `labels`",
        ),
        (DEPLOYMENTS, templated(containers=[]), "spec.template.spec.containers", "Required value"),
        (
            DEPLOYMENTS,
            templated(containers=[{"name": "a", "image": "x"}, {"name": "a", "image": "y"}]),
            "spec.template.spec.containers[1].name",
            "Duplicate value",
        ),
        (
            DEPLOYMENTS,
            templated(**container(volumeMounts=[{"name": "v", "mountPath": "/v"}])),
            "spec.template.spec.containers[0].volumeMounts[0].name",
            "Not found",
        ),
        (
            DEPLOYMENTS,
            templated(**container(readinessProbe={"periodSeconds": 1})),
            "spec.template.spec.containers[0].readinessProbe",
            "must specify a handler type",
        ),
        (
            DEPLOYMENTS,
            templated(**container(imagePullPolicy="Sometimes")),
            "spec.template.spec.containers[0].imagePullPolicy",
            'supported values: "Always", "IfNotPresent", "Never"',
        ),
        (
            DEPLOYMENTS,
            deployment(strategy={"type": "Recreate", "rollingUpdate": {"maxSurge": 1}}),
            "spec.strategy.rollingUpdate",
            "Forbidden",
        ),
        (SERVICES, {"metadata": {"name": "s"}, "spec": {}}, "spec.ports", "Required value"),
        (
            SERVICES,
            {
                "metadata": {"name": "s"},
                "spec": {"ports": [{"port": 1, "name": "a"}, {"port": 1, "name": "b"}]},
            },
            "spec.ports[1]",
            "Duplicate value",
        ),
        (
            SERVICES,
            {"metadata": {"name": "s"}, "spec": {"ports": [{"port": 1}, {"port": 2}]}},
            "spec.ports[0].name",
            "Required value",
        ),
        (
            SERVICES,
            {"metadata": {"name": "s"}, "spec": {"type": "Magic", "ports": [{"port": 1}]}},
            "spec.type",
            "Unsupported value",
        ),
        (
            SLICES,
            {
                "metadata": {"name": "s"},
                "addressType": "IPv4",
                "endpoints": [{"addresses": ["::1"]}],
            },
            "endpoints[0].addresses[0]",
            "must be an IPv4 address",
        ),
        (SLICES, {"metadata": {"name": "s"}, "endpoints": []}, "addressType", "Required value"),
        (
            LEASES,
            {"metadata": {"name": "l"}, "spec": {"leaseDurationSeconds": 0}},
            "spec.leaseDurationSeconds",
            "must be greater than 0",
        ),
        (
            CONFIG_MAPS,
            {"metadata": {"name": "c"}, "data": {"a b": ""}},
            "data[a b]",
            "valid config key",
        ),
        (
            CONFIG_MAPS,
            {"metadata": {"name": "c", "labels": {"a b": "c d"}}},
            "metadata.labels",
            "name part must consist of",
        ),
    ],
)
async def test_what_is_wrong_is_named(kube, path, body, field, message):
    reply = await kube.create(path, body)
    assert (reply.code, reply["reason"]) == (422, "Invalid"), reply
    found = [cause["message"] for cause in reply["details"]["causes"] if cause["field"] == field]
    assert found, reply
    assert message in found[0]


@pytest.mark.parametrize(
    ("path", "body", "patch"),
    [
        (
            DEPLOYMENTS,
            deployment(),
            {
                "spec": {
                    "selector": {"matchLabels": {"app": "new"}},
                    "template": {"metadata": {"labels": {"app": "new"}}},
                }
            },
        ),
        (PODS, pod("web"), {"spec": {"hostname": "other"}}),
        (SECRETS, {"metadata": {"name": "web"}}, {"type": "other"}),
        (CONFIG_MAPS, {"metadata": {"name": "web"}, "immutable": True}, {"data": {"a": "b"}}),
        (SLICES, {"metadata": {"name": "web"}, "addressType": "IPv4"}, {"addressType": "IPv6"}),
        (
            "/apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings",
            {"metadata": {"name": "web"}, "roleRef": {"kind": "Role", "name": "a"}},
            {"roleRef": {"kind": "Role", "name": "b"}},
        ),
    ],
)
async def test_what_is_fixed_stays(kube, path, body, patch):
    assert (await kube.create(path, body)).code == 201
    reply = await kube.merge(f"{path}/web", patch)
    assert (reply.code, reply["reason"]) == (422, "Invalid"), reply


async def test_a_pod_is_filled_in(kube):
    made = await kube.create(PODS, pod("a"))
    spec = made["spec"]
    assert spec["restartPolicy"] == "Always"
    assert spec["terminationGracePeriodSeconds"] == 30
    assert spec["serviceAccountName"] == "default"
    assert spec["containers"][0]["imagePullPolicy"] == "IfNotPresent"
    assert made["status"] == {"phase": "Pending", "qosClass": "BestEffort"}


async def test_a_pod_s_image_may_change(kube):
    await kube.create(PODS, pod("a"))
    body = {"spec": {"containers": [{"name": "main", "image": "app:2"}]}}
    strategic = "application/strategic-merge-patch+json"
    reply = await kube.send("PATCH", f"{PODS}/a", body, kind=strategic)
    assert reply["spec"]["containers"][0]["image"] == "app:2"


async def test_a_secret_s_plain_text_is_folded_in(kube):
    made = await kube.create(SECRETS, {"metadata": {"name": "s"}, "stringData": {"a": "b"}})
    assert made["data"] == {"a": "Yg=="}
    assert "stringData" not in made.body
    assert made["type"] == "Opaque"


async def test_a_lease_is_not_updated_blindly(kube):
    await kube.create(LEASES, {"metadata": {"name": "l"}, "spec": {"holderIdentity": "a"}})
    reply = await kube.update(
        f"{LEASES}/l", {"metadata": {"name": "l"}, "spec": {"holderIdentity": "b"}}
    )
    assert reply.code == 422
    assert "must be specified for an update" in reply["message"]


async def test_a_node_registers_with_its_status(kube):
    made = await kube.create(
        "/api/v1/nodes", {"metadata": {"name": "n"}, "status": {"capacity": {"cpu": "2"}}}
    )
    assert made["status"]["allocatable"] == {"cpu": "2"}
