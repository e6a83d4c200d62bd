"""The kubelet on a real API server: as a node, with a node's rights and no others."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.kubelet.support import ROOT, condition, is_ready, shell, state_of, status_of, stop, web

from tests.controlplane.rig import ControlPlane

pytestmark = [pytest.mark.controlplane, pytest.mark.slow]

NODE = "kubelet-test"
ADDRESS = "10.200.9.1"
NETWORK = "10.200.9.0/24"


def start(rig: ControlPlane, directory: Path) -> subprocess.Popen[bytes]:
    kubeconfig = rig.kubeconfig_for(f"system:node:{NODE}", ["system:nodes"], inside=True)
    argv = [sys.executable, "-W", "ignore", "-m", "tests.kubelet.inside"]
    argv += [str(kubeconfig), NODE, ADDRESS, NETWORK, str(directory)]
    return rig.popen_inside(argv, cwd=ROOT)


@pytest.fixture(scope="module")
def node(controlplane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A node of the control plane that this kubelet runs, as its directory; gone afterwards."""
    directory = tmp_path_factory.mktemp("kubelet")
    process = start(controlplane, directory)
    try:
        selector = f"/api/v1/nodes?fieldSelector=metadata.name={NODE}"
        controlplane.api.until(
            selector,
            lambda found: (
                bool(found)
                and condition(found[0], "Ready") == "True"
                and not found[0]["spec"].get("taints")
            ),
        )
        # Pods here name their node; those of other tests must not land on it.
        controlplane.kubectl("cordon", NODE)
        yield directory
    finally:
        stop(process)
        controlplane.api.delete(f"/api/v1/nodes/{NODE}")


class Namespace:
    """A namespace of the control plane."""

    def __init__(self, rig: ControlPlane, directory: Path) -> None:
        self.rig = rig
        self.directory = directory
        self.namespace = rig.create_namespace("kubelet")

    def printed(self, pod: dict[str, Any], container: str = "main") -> list[str]:
        """What a container printed, from its log: this kubelet has no server for the API server."""
        log = self.directory / "pods" / pod["metadata"]["uid"] / "logs" / container / "0.log"
        return [line.partition(" ")[2] for line in log.read_text().splitlines()]

    def create(self, *containers: Any, name: str = "web", **spec: Any) -> None:
        self.rig.api.create(
            f"/api/v1/namespaces/{self.namespace}/pods",
            {
                "metadata": {"name": name, "labels": {"app": name}},
                "spec": {"containers": list(containers), "nodeName": NODE, **spec},
            },
        )

    def until(self, holds: Any, name: str = "web") -> dict[str, Any]:
        path = f"/api/v1/namespaces/{self.namespace}/pods?fieldSelector=metadata.name={name}"
        found = self.rig.api.until(path, lambda pods: bool(pods) and holds(pods[0]))
        return found[0]

    def gone(self, name: str = "web") -> None:
        path = f"/api/v1/namespaces/{self.namespace}/pods?fieldSelector=metadata.name={name}"
        self.rig.api.until(path, lambda pods: not pods)

    def kubectl(self, *arguments: str) -> str:
        return self.rig.kubectl("-n", self.namespace, *arguments)


@pytest.fixture
def namespace(controlplane: ControlPlane, node: Path) -> Namespace:
    return Namespace(controlplane, node)


def test_a_pod_becomes_ready_is_reached_and_goes_with_grace(namespace: Namespace):
    probe = {"httpGet": {"path": "/", "port": 8080}, "periodSeconds": 1}
    namespace.create(web(8080, readinessProbe=probe))
    seen = namespace.until(is_ready)
    assert seen["status"]["podIP"].startswith("10.200.9.")
    assert seen["status"]["phase"] == "Running"
    code = f"import urllib.request; print(urllib.request.urlopen('http://{seen['status']['podIP']}:8080').read())"
    assert "hello" in namespace.rig.run_inside([sys.executable, "-c", code])
    namespace.kubectl("delete", "pod", "web", "--wait=true", "--timeout=20s")
    namespace.gone()


def test_a_pod_that_others_call_unready_is_called_ready_again(namespace: Namespace):
    namespace.create(shell("exec sleep 60"))
    namespace.until(is_ready)
    # As the node lifecycle controller does where it takes a node for lost.
    condition = {"type": "Ready", "status": "False", "reason": "NodeNotReady"}
    path = f"/api/v1/namespaces/{namespace.namespace}/pods/web/status"
    answer = namespace.rig.api.request(
        "PATCH",
        path,
        {"status": {"conditions": [condition]}},
        content_type="application/strategic-merge-patch+json",
    )
    assert answer.ok
    assert not is_ready(answer.json)
    namespace.until(is_ready)


def test_a_pod_reaches_the_api_server_as_its_account(namespace: Namespace):
    code = (
        "import asyncio, os\n"
        "from kubeloop.client import Client\n"
        "async def main():\n"
        "    async with Client.in_cluster() as client:\n"
        "        review = {'kind': 'SelfSubjectReview',"
        " 'apiVersion': 'authentication.k8s.io/v1'}\n"
        "        reviews = client.resource('authentication.k8s.io/v1/selfsubjectreviews')\n"
        "        answer = await reviews.create(review)\n"
        "        print(answer['status']['userInfo']['username'], client.namespace)\n"
        "asyncio.run(main())\n"
    )
    namespace.create(
        {"name": "main", "image": "x", "command": ["python", "-c", code]}, restartPolicy="Never"
    )
    seen = namespace.until(lambda p: p["status"].get("phase") in ("Succeeded", "Failed"))
    printed = namespace.printed(seen)
    assert seen["status"]["phase"] == "Succeeded", printed
    user = f"system:serviceaccount:{namespace.namespace}:default"
    assert printed == [f"{user} {namespace.namespace}"]


def test_volumes_and_variables_come_from_the_api(namespace: Namespace):
    namespace.rig.api.create(
        f"/api/v1/namespaces/{namespace.namespace}/configmaps",
        {"metadata": {"name": "cm"}, "data": {"k": "one"}},
    )
    env = [{"name": "K", "valueFrom": {"configMapKeyRef": {"name": "cm", "key": "k"}}}]
    main = shell(
        "echo $K; cat /no-such-root/cm/k",
        env=env,
        volumeMounts=[{"name": "cm", "mountPath": "/no-such-root/cm"}],
    )
    volumes = [{"name": "cm", "configMap": {"name": "cm"}}]
    namespace.create(main, volumes=volumes, restartPolicy="Never")
    seen = namespace.until(lambda p: p["status"].get("phase") == "Succeeded")
    assert namespace.printed(seen) == ["one", "one"]


def test_a_crashing_pod_is_shown_as_such(namespace: Namespace):
    namespace.create(
        shell("exit 3"), {"name": "lost", "image": "x", "command": ["no-such-program"]}
    )
    seen = namespace.until(
        lambda p: (
            state_of(p).get("waiting", {}).get("reason") == "CrashLoopBackOff"
            and status_of(p, "lost")["restartCount"] >= 1
        )
    )
    assert status_of(seen)["lastState"]["terminated"]["exitCode"] == 3
    assert status_of(seen, "lost")["lastState"]["terminated"]["reason"] == "StartError"
    assert "CrashLoopBackOff" in namespace.kubectl("get", "pods")


def test_a_deployment_rolls_out_and_scales_to_nothing(namespace: Namespace):
    probe = {"tcpSocket": {"port": 8080}, "periodSeconds": 1}
    template = {
        "metadata": {"labels": {"app": "d"}},
        "spec": {"nodeName": NODE, "containers": [web(8080, readinessProbe=probe)]},
    }
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "d"},
        "spec": {"replicas": 3, "selector": {"matchLabels": {"app": "d"}}, "template": template},
    }
    namespace.rig.kubectl(
        "-n", namespace.namespace, "apply", "-f", "-", stdin=json.dumps(deployment)
    )
    namespace.kubectl("rollout", "status", "deployment/d", "--timeout=30s")
    pods = f"/api/v1/namespaces/{namespace.namespace}/pods"
    running = namespace.rig.api.get(pods)["items"]
    assert [is_ready(pod) for pod in running] == [True] * 3
    address = running[0]["status"]["podIP"]
    connect = f"import socket; socket.create_connection(('{address}', 8080), 5)"
    namespace.rig.run_inside([sys.executable, "-c", connect])
    namespace.kubectl("scale", "deployment/d", "--replicas=0")
    assert namespace.rig.api.until(pods, lambda found: not found) == []
    with pytest.raises(subprocess.CalledProcessError):
        namespace.rig.run_inside([sys.executable, "-c", connect])


def test_events_name_the_container_as_kubectl_shows_it(namespace: Namespace):
    namespace.create(shell("exec sleep 60"))
    namespace.until(is_ready)
    path = f"/api/v1/namespaces/{namespace.namespace}/events"
    events = namespace.rig.api.until(
        path, lambda found: any(e["reason"] == "Started" for e in found)
    )
    started = next(e for e in events if e["reason"] == "Started")
    assert started["involvedObject"]["fieldPath"] == "spec.containers{main}"
    assert started["source"] == {"component": "kubelet", "host": NODE}
    assert "Container started" in namespace.kubectl("describe", "pod", "web")
