"""The real kubectl is the acceptance test."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path

import pytest
import yaml
from tests.apiserver.harness import definition, deployment, widget

from devkube.apiserver import ApiServer

pytestmark = pytest.mark.slow


def programs() -> list[str]:
    """Every kubectl there is: the machine's own and the control plane's."""
    cache = Path.home() / ".cache" / "elasti" / "controlplane"
    found = [shutil.which("kubectl"), *map(str, sorted(cache.glob("*/kubectl")))]
    return [path for path in found if path]


class Kubectl:
    def __init__(self, program: str, directory: Path, server: ApiServer) -> None:
        self._command = [
            program,
            "--kubeconfig",
            str(directory / "config"),
            "--cache-dir",
            str(directory / "cache"),
        ]
        self._directory = directory
        (directory / "config").write_text(server.admin_kubeconfig())

    async def run(self, *arguments: str, stdin: object = None, code: int = 0) -> str:
        text = yaml.safe_dump(stdin) if stdin is not None else ""
        process = await asyncio.create_subprocess_exec(
            *self._command,
            *arguments,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output, _ = await process.communicate(text.encode())
        assert process.returncode == code, output.decode()
        return output.decode()

    async def json(self, *arguments: str):
        return json.loads(await self.run(*arguments, "-o", "json"))


MISSING = pytest.param(
    "", marks=pytest.mark.skip(reason="no kubectl: make controlplane builds one")
)
PROGRAMS = [pytest.param(path, id=f"kubectl-{index}") for index, path in enumerate(programs())]


@pytest.fixture(params=PROGRAMS or [MISSING])
async def kubectl(request, tmp_path):
    async with ApiServer() as server:
        yield Kubectl(request.param, tmp_path, server)


async def test_apply_changes_prunes_and_diffs(kubectl):
    body = deployment()
    assert await kubectl.run("apply", "-f", "-", stdin=body) == "deployment.apps/web created\n"
    assert await kubectl.run("apply", "-f", "-", stdin=body) == "deployment.apps/web unchanged\n"
    body["spec"]["replicas"] = 5
    body["spec"]["template"]["spec"]["containers"].append({"name": "side", "image": "car:1"})
    assert "+  replicas: 5" in await kubectl.run("diff", "-f", "-", stdin=body, code=1)
    assert await kubectl.run("apply", "-f", "-", stdin=body) == "deployment.apps/web configured\n"
    del body["spec"]["template"]["spec"]["containers"][1]
    await kubectl.run("apply", "-f", "-", stdin=body)
    found = await kubectl.json("get", "deployment", "web")
    assert [item["name"] for item in found["spec"]["template"]["spec"]["containers"]] == ["web"]
    assert found["spec"]["replicas"] == 5


async def test_server_side_apply_reports_conflicts(kubectl):
    body = deployment()
    await kubectl.run("apply", "--server-side", "-f", "-", stdin=body)
    body["spec"]["replicas"] = 9
    refused = await kubectl.run(
        "apply", "--server-side", "--field-manager=other", "-f", "-", stdin=body, code=1
    )
    assert 'Apply failed with 1 conflict: conflict with "kubectl": .spec.replicas' in refused
    await kubectl.run(
        "apply",
        "--server-side",
        "--field-manager=other",
        "--force-conflicts",
        "-f",
        "-",
        stdin=body,
    )


async def test_mistakes_are_explained(kubectl):
    wrong = deployment(replics=3)
    assert 'unknown field "spec.replics"' in await kubectl.run(
        "apply", "-f", "-", stdin=wrong, code=1
    )
    invalid = deployment(replicas=-1)
    assert "spec.replicas: Invalid value: -1" in await kubectl.run(
        "apply", "-f", "-", stdin=invalid, code=1
    )
    assert 'pods "nope" not found' in await kubectl.run("get", "pod", "nope", code=1)


async def test_imperative_commands(kubectl):
    await kubectl.run("create", "namespace", "shop")
    await kubectl.run("create", "configmap", "c", "--from-literal=a=b", "-n", "shop")
    await kubectl.run("create", "secret", "generic", "s", "--from-literal=a=b", "-n", "shop")
    await kubectl.run("create", "deployment", "web", "--image=nginx", "--replicas=2", "-n", "shop")
    await kubectl.run("expose", "deployment", "web", "--port=80", "-n", "shop")
    await kubectl.run("autoscale", "deployment", "web", "--max=3", "-n", "shop")
    await kubectl.run("scale", "deployment", "web", "--replicas=7", "-n", "shop")
    await kubectl.run("set", "image", "deployment/web", "nginx=nginx:2", "-n", "shop")
    await kubectl.run("label", "deployment", "web", "tier=front", "-n", "shop")
    await kubectl.run("annotate", "deployment", "web", "note=hello", "-n", "shop")
    await kubectl.run("patch", "deployment", "web", "-n", "shop", "-p", '{"spec":{"paused":true}}')
    await kubectl.run("create", "role", "r", "--verb=get", "--resource=pods", "-n", "shop")
    await kubectl.run("create", "rolebinding", "b", "--role=r", "--user=me", "-n", "shop")
    await kubectl.run("create", "serviceaccount", "robot", "-n", "shop")
    found = await kubectl.json("get", "deployment", "web", "-n", "shop")
    assert found["spec"]["replicas"] == 7
    assert found["spec"]["paused"] is True
    assert found["metadata"]["labels"]["tier"] == "front"
    assert found["spec"]["template"]["spec"]["containers"][0]["image"] == "nginx:2"
    listed = await kubectl.run("get", "all,cm,secret,hpa,role,rolebinding", "-n", "shop")
    for name in ("deployment.apps/web", "service/web", "configmap/c", "secret/s"):
        assert name in listed
    await kubectl.run("delete", "deployment,service", "web", "-n", "shop")
    assert (await kubectl.json("get", "deployment", "-n", "shop"))["items"] == []


async def test_tables_selectors_and_wide_output(kubectl):
    for name in ("a", "b"):
        await kubectl.run("apply", "-f", "-", stdin=deployment(name))
    assert "READY   UP-TO-DATE   AVAILABLE" in await kubectl.run("get", "deploy")
    assert "CONTAINERS   IMAGES" in await kubectl.run("get", "deploy", "-o", "wide")
    assert (await kubectl.run("get", "deploy", "-l", "app=b", "-o", "name")).split() == [
        "deployment.apps/b"
    ]
    assert (
        await kubectl.run("get", "deploy", "--field-selector=metadata.name=a", "-o", "name")
    ).split() == ["deployment.apps/a"]
    chunked = await kubectl.run("get", "deploy", "--chunk-size=1", "-o", "name")
    assert len(chunked.split()) == 2


async def test_custom_resources_from_definition_to_deletion(kubectl):
    await kubectl.run("apply", "-f", "-", stdin=definition())
    await kubectl.run(
        "wait", "--for=condition=established", "crd/widgets.example.com", "--timeout=10s"
    )
    await kubectl.run("apply", "-f", "-", stdin=widget())
    assert "SIZE" in await kubectl.run("get", "wd")
    assert 'supported values: "small", "large"' in await kubectl.run(
        "apply", "-f", "-", stdin=widget(size="huge"), code=1
    )
    await kubectl.run("scale", "widget", "w", "--replicas=4")
    await kubectl.run(
        "apply", "--server-side", "--force-conflicts", "-f", "-", stdin=widget(tags=["x"])
    )
    await kubectl.run(
        "patch",
        "widget",
        "w",
        "--type=merge",
        "-p",
        '{"status":{"replicas":4}}',
        "--subresource=status",
    )
    found = await kubectl.json("get", "widget", "w")
    assert (found["spec"]["replicas"], found["status"]["replicas"]) == (4, 4)
    assert "replicas\t<integer>" in await kubectl.run("explain", "widget.spec")
    await kubectl.run("delete", "crd", "widgets.example.com", "--timeout=10s")
    await kubectl.run("get", "wd", code=1)


async def test_explain_api_resources_and_version(kubectl):
    assert "rollingUpdate\t<RollingUpdateDeployment>" in await kubectl.run(
        "explain", "deployment.spec.strategy"
    )
    resources = await kubectl.run("api-resources", "-o", "name")
    assert {"pods", "deployments.apps", "leases.coordination.k8s.io"} <= set(resources.split())
    assert "Server Version: v1." in await kubectl.run("version")


async def test_a_watch_shows_a_change(kubectl):
    await kubectl.run("create", "configmap", "c")
    waiting = asyncio.create_task(
        kubectl.run("wait", "configmap/c", "--for=jsonpath={.data.ready}=yes", "--timeout=20s")
    )
    await kubectl.run("patch", "configmap", "c", "-p", '{"data":{"ready":"yes"}}')
    assert "condition met" in await waiting


async def test_create_dry_run_replace_and_edit_style_updates(kubectl):
    shown = await kubectl.run(
        "create", "deployment", "d", "--image=i", "--dry-run=server", "-o", "yaml"
    )
    assert "terminationGracePeriodSeconds: 30" in shown
    await kubectl.run("get", "deployment", "d", code=1)
    await kubectl.run("create", "-f", "-", stdin=deployment())
    assert "already exists" in await kubectl.run("create", "-f", "-", stdin=deployment(), code=1)
    await kubectl.run("replace", "-f", "-", stdin=deployment(replicas=3))
    await kubectl.run("rollout", "pause", "deployment/web")
    assert (await kubectl.json("get", "deployment", "web"))["spec"]["paused"] is True
