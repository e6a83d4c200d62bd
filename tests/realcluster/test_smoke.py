"""Real nodes run Elasti from its own image, confined, and one request wakes what sleeps."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from hack.realcluster.cluster import is_ready
from hack.realcluster.images import APP
from tests.realcluster.rig import Rig, run

if TYPE_CHECKING:
    from typing import Any

pytestmark = [pytest.mark.realcluster, pytest.mark.timeout(600)]


def test_both_nodes_are_ready(realcluster: Rig) -> None:
    nodes = realcluster.api.get("/api/v1/nodes")["items"]
    assert sorted(node["metadata"]["name"] for node in nodes) == ["node-1", "node-2"]
    assert all(map(is_ready, nodes))
    runtimes = {node["status"]["nodeInfo"]["containerRuntimeVersion"] for node in nodes}
    assert all(runtime.startswith("containerd://2.") for runtime in runtimes)


@pytest.mark.parametrize("node", ["node-1", "node-2"])
def test_names_resolve_in_a_pod(realcluster: Rig, node: str) -> None:
    namespace = realcluster.namespace(f"names-on-{node}")
    ask = "import socket; print(socket.gethostbyname('kubernetes.default'))"
    confined = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    container = {
        "name": "main",
        "image": APP,
        "command": ["python3", "-c", ask],
        "securityContext": confined,
    }
    spec = {
        "nodeName": node,
        "restartPolicy": "Never",
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [container],
    }
    name = {"name": "ask", "namespace": namespace}
    realcluster.apply({"apiVersion": "v1", "kind": "Pod", "metadata": name, "spec": spec})

    def ended(pods: list[dict[str, Any]]) -> bool:
        return any(pod["status"].get("phase") in ("Succeeded", "Failed") for pod in pods)

    realcluster.api.until(f"/api/v1/namespaces/{namespace}/pods", ended, 60)
    assert realcluster.kubectl("logs", "ask", f"--namespace={namespace}") == "10.201.0.1\n"


def test_operator_and_resolver_run_under_enforced_restrictions(installed: Rig) -> None:
    pods = installed.api.get("/api/v1/namespaces/elasti/pods")["items"]
    assert len(pods) == 4
    assert all(map(is_ready, pods))
    assert {pod["spec"]["nodeName"] for pod in pods} == {"node-1", "node-2"}
    refused = ["run", "root", "--namespace=elasti", "--image=localhost/app:dev", "--privileged"]
    with pytest.raises(AssertionError, match="violates PodSecurity"):
        installed.kubectl(*refused)


def test_nothing_of_it_is_in_the_machines_own_network(realcluster: Rig) -> None:
    ours = run(["ip", "-brief", "link"])
    assert "cni0" in realcluster.inside("node-1", "ip", "-brief", "link")
    assert not any(name in ours for name in ("cni0", "br0", "node1"))
