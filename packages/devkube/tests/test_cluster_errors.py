"""What people do wrong, and what they are told: the real kubectl against a whole cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.apiserver.harness import definition, widget
from tests.cluster_support import Kubectl, kubectls, running

pytestmark = pytest.mark.slow
PROGRAMS = [pytest.param(path, id=f"kubectl-{index}") for index, path in enumerate(kubectls())] or [
    pytest.param("", marks=pytest.mark.skip(reason="no kubectl: make controlplane builds one"))
]


@pytest.fixture(params=PROGRAMS)
async def kubectl(request: pytest.FixtureRequest, tmp_path: Path):
    async with running(tmp_path, nodes=0):
        yield Kubectl(tmp_path, request.param)


def broken(change: dict[str, Any]) -> dict[str, Any]:
    made = definition()
    schema = made["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    schema["properties"]["spec"]["properties"]["size"] = change
    return made


async def test_a_definition_with_an_invalid_schema(kubectl: Kubectl) -> None:
    said = await kubectl.fails("apply", "-f", "-", stdin=broken({"type": "text"}))
    assert 'The CustomResourceDefinition "widgets.example.com" is invalid' in said
    assert "properties[spec].properties[size].type" in said
    assert 'Unsupported value: "text"' in said


async def test_a_definition_without_types(kubectl: Kubectl) -> None:
    said = await kubectl.fails("apply", "-f", "-", stdin=broken({"description": "no type"}))
    assert "properties[size].type: Required value: must not be empty for specified object" in said


async def test_an_unknown_kind(kubectl: Kubectl) -> None:
    said = await kubectl.fails("apply", "-f", "-", stdin=widget())
    assert 'no matches for kind "Widget" in version "example.com/v1"' in said
    assert "ensure CRDs are installed first" in said
    said = await kubectl.fails("get", "widgets")
    assert said.strip() == 'error: the server doesn\'t have a resource type "widgets"'


async def test_a_manifest_with_a_typo(kubectl: Kubectl) -> None:
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web"},
        "spec": {
            "replica": 2,
            "selector": {"matchLabels": {"app": "web"}},
            "template": {
                "metadata": {"labels": {"app": "web"}},
                "spec": {"containers": [{"name": "web", "image": "x", "comand": ["sleep"]}]},
            },
        },
    }
    said = await kubectl.fails("apply", "-f", "-", stdin=deployment)
    assert 'unknown field "spec.replica"' in said
    assert 'unknown field "spec.template.spec.containers[0].comand"' in said


async def test_a_custom_object_that_its_definition_forbids(kubectl: Kubectl) -> None:
    await kubectl("apply", "-f", "-", stdin=definition())
    await kubectl("wait", "--for=condition=Established", "crd/widgets.example.com", "--timeout=10s")
    said = await kubectl.fails("apply", "-f", "-", stdin=widget(size="huge"))
    assert 'The Widget "w" is invalid: spec.size: Unsupported value: "huge"' in said
    assert 'supported values: "small", "large"' in said


async def test_a_selector_that_does_not_match_its_template(kubectl: Kubectl) -> None:
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web"},
        "spec": {
            "selector": {"matchLabels": {"app": "web"}},
            "template": {
                "metadata": {"labels": {"app": "other"}},
                "spec": {"containers": [{"name": "web", "image": "x"}]},
            },
        },
    }
    said = await kubectl.fails("apply", "-f", "-", stdin=deployment)
    assert 'The Deployment "web" is invalid: spec.template.metadata.labels' in said
    assert "`selector` does not match template `labels`" in said


async def test_an_object_that_is_not_there(kubectl: Kubectl) -> None:
    said = await kubectl.fails("get", "pod", "none")
    assert said.strip() == 'Error from server (NotFound): pods "none" not found'
    said = await kubectl.fails("get", "pods", "-n", "kube-system", "none")
    assert "NotFound" in said


async def test_a_namespace_that_is_not_there(kubectl: Kubectl) -> None:
    said = await kubectl.fails("create", "configmap", "a", "-n", "nowhere")
    assert 'namespaces "nowhere" not found' in said


async def test_kubectl_auth_can_i_and_whoami(kubectl: Kubectl) -> None:
    assert (await kubectl("auth", "can-i", "delete", "nodes")).strip().endswith("yes")
    code, said = await kubectl.run("auth", "can-i", "list", "pods", "--as=x")
    assert (code, said.strip()) == (1, "no")
    await kubectl("create", "rolebinding", "x", "--clusterrole=view", "--user=x")
    assert (await kubectl("auth", "can-i", "list", "pods", "--as=x")).strip() == "yes"
    code, said = await kubectl.run("auth", "can-i", "list", "pods", "-n", "kube-system", "--as=x")
    assert (code, said.strip()) == (1, "no")
    listed = await kubectl("auth", "can-i", "--list", "--as=x")
    assert "pods/log" in listed
    assert "selfsubjectaccessreviews.authorization.k8s.io" in listed
    who = await kubectl("auth", "whoami", "--as=x", "--as-group=team")
    assert "[team system:authenticated]" in who


async def test_a_token_made_by_kubectl_is_a_login(kubectl: Kubectl) -> None:
    await kubectl("create", "serviceaccount", "robot")
    token = (await kubectl("create", "token", "robot", "--duration=10m")).strip()
    # A token beside a client certificate loses; so here it is the only credential.
    document = kubectl.kubeconfig.read_text()
    bare = "\n".join(line for line in document.splitlines() if "client-" not in line)
    kubectl.kubeconfig.write_text(bare)
    said = await kubectl.fails("get", "pods", f"--token={token}")
    assert 'User "system:serviceaccount:default:robot" cannot list resource "pods"' in said
    who = await kubectl("auth", "whoami", f"--token={token}")
    assert "system:serviceaccount:default:robot" in who
    said = await kubectl.fails("get", "pods", "--token=rubbish")
    assert "You must be logged in to the server (Unauthorized)" in said
