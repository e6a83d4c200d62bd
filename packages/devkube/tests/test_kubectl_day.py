"""A user's day with kubectl at a whole dev cluster: what other tests try apart, one after the other."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from tests.cluster_support import Kubectl, Running, kubectls, running

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(120),
    pytest.mark.skipif(not kubectls(), reason="no kubectl: make controlplane builds one"),
]


def sleeper(name: str = "web", replicas: int = 2) -> dict[str, Any]:
    labels = {"app": name}
    command = ["/bin/sh", "-c", "echo started; exec sleep 1000"]
    container = {"name": "main", "image": "one", "command": command}
    pod = {"containers": [container], "terminationGracePeriodSeconds": 1}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }


async def names(kubectl: Kubectl, *words: str) -> list[str]:
    return (await kubectl("get", *words, "-o", "name")).split()


async def test_cluster_info_has_the_address(tmp_path):
    async with running(tmp_path) as cluster:
        said = await cluster.kubectl("cluster-info")
        assert "Kubernetes control plane" in said
        assert cluster.cluster.url in said


async def test_a_rollout_is_made_followed_changed_and_undone(tmp_path):
    async with running(tmp_path) as cluster:
        kubectl = cluster.kubectl
        await kubectl("apply", "-f", "-", stdin=sleeper())
        assert "successfully rolled out" in await kubectl("rollout", "status", "deploy/web")
        await kubectl("set", "image", "deploy/web", "main=two")
        await kubectl("rollout", "status", "deploy/web")
        assert "REVISION" in await kubectl("rollout", "history", "deploy/web")
        await kubectl("rollout", "undo", "deploy/web")
        await kubectl("rollout", "status", "deploy/web")
        image = "jsonpath={.spec.template.spec.containers[0].image}"
        assert await kubectl("get", "deploy/web", "-o", image) == "one"
        await kubectl("rollout", "restart", "deploy/web")
        await kubectl("rollout", "status", "deploy/web")
        await kubectl("scale", "deploy/web", "--replicas=3")
        await kubectl(
            "wait", "--for=jsonpath={.status.readyReplicas}=3", "deploy/web", "--timeout=20s"
        )


async def test_objects_are_sorted_selected_and_shown_in_every_form(tmp_path):
    async with running(tmp_path) as cluster:
        kubectl = cluster.kubectl
        for number in (2, 1, 3):
            await kubectl("create", "configmap", f"c{number}", f"--from-literal=n={number}")
            await kubectl("label", "configmap", f"c{number}", f"n={4 - number}")
        by_label = await names(kubectl, "configmaps", "-l", "n", "--sort-by={.metadata.labels.n}")
        assert by_label == ["configmap/c3", "configmap/c2", "configmap/c1"]
        one = await names(kubectl, "configmaps", "--field-selector", "metadata.name=c2")
        assert one == ["configmap/c2"]
        wide = await kubectl("get", "nodes", "-o", "wide")
        assert "INTERNAL-IP" in wide
        document = json.loads(await kubectl("get", "configmap", "c1", "-o", "json"))
        assert document["data"] == {"n": "1"}
        await kubectl("annotate", "configmap", "c1", "note=kept")
        assert "note" in await kubectl("describe", "configmap", "c1")


async def test_a_watch_shows_what_happens(tmp_path):
    async with running(tmp_path) as cluster:
        watching = await start(cluster, "get", "configmaps", "-w", "-o", "name")
        assert watching.stdout is not None
        assert await watching.stdout.readline() == b"configmap/kube-root-ca.crt\n"
        await cluster.kubectl("create", "configmap", "fresh")
        assert await watching.stdout.readline() == b"configmap/fresh\n"
        watching.kill()
        await watching.communicate()


async def test_logs_are_followed(tmp_path):
    async with running(tmp_path) as cluster:
        await cluster.kubectl("apply", "-f", "-", stdin=sleeper(replicas=1))
        await cluster.kubectl("rollout", "status", "deploy/web")
        following = await start(cluster, "logs", "-f", "deploy/web")
        assert following.stdout is not None
        assert await following.stdout.readline() == b"started\n"
        following.kill()
        await following.communicate()


async def start(cluster: Running, *words: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *cluster.kubectl._command, *words, stdout=asyncio.subprocess.PIPE
    )


async def test_deletion_obeys_cascade_grace_and_force(tmp_path):
    async with running(tmp_path) as cluster:
        kubectl = cluster.kubectl
        await kubectl("apply", "-f", "-", stdin=sleeper())
        await kubectl("rollout", "status", "deploy/web")
        await kubectl("delete", "deploy/web", "--cascade=orphan")
        (replica_set,) = await names(kubectl, "rs", "-l", "app=web")
        pods = await names(kubectl, "pods", "-l", "app=web")
        assert len(pods) == 2
        await kubectl("delete", replica_set, "--cascade=orphan")
        await kubectl("delete", pods[0], "--grace-period=0", "--force")
        await kubectl("delete", pods[1], "--grace-period=1")
        assert await names(kubectl, "pods", "-l", "app=web") == []


async def test_a_manifest_is_edited_compared_and_explained(tmp_path, monkeypatch):
    async with running(tmp_path) as cluster:
        kubectl = cluster.kubectl
        await kubectl("apply", "--server-side", "-f", "-", stdin=sleeper(replicas=1))
        code, difference = await kubectl.run("diff", "-f", "-", stdin=sleeper(replicas=5))
        assert code == 1
        assert "replicas: 5" in difference
        editor = Path(tmp_path) / "editor"
        editor.write_text("#!/bin/sh\nsed -i 's/replicas: 1/replicas: 2/' \"$1\"\n")
        editor.chmod(0o755)
        monkeypatch.setenv("KUBE_EDITOR", str(editor))
        assert "edited" in await kubectl("edit", "deploy/web")
        assert await kubectl("get", "deploy/web", "-o", "jsonpath={.spec.replicas}") == "2"
        assert "maxSurge" in await kubectl("explain", "deployment.spec.strategy.rollingUpdate")
        assert "deployments" in await kubectl("api-resources", "--api-group=apps")
        assert (await kubectl("auth", "can-i", "delete", "pods")).strip() == "yes"
