"""What a node serves of its pods' traffic, and to whom."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import aiohttp
import msgspec

from devkube.apiserver.auth import ADMIN_GROUP
from devkube.cluster import DevCluster
from devkube.kubelet.stats import CONNECTION, ByteCounts, StatsServer
from kubeloop.aio.clock import SystemClock
from kubeloop.client import Client, ClientConfig
from kubeloop.objects.core import Probe


def pod(uid: str, address: str) -> Any:
    return SimpleNamespace(
        uid=uid,
        metadata=SimpleNamespace(name=uid, namespace="default"),
        status=SimpleNamespace(pod_ip=address),
    )


def _admin(cluster: DevCluster) -> ClientConfig:
    return cluster.server.client_config("dev-admin", [ADMIN_GROUP])


def seen(server: StatsServer) -> dict[str, int]:
    return {
        one["podRef"]["uid"]: one["network"]["rxBytes"] + one["network"]["txBytes"]
        for one in server.summary()["pods"]
    }


def test_bytes_are_counted_by_pod_from_its_first_reading_on():
    counts, pods = ByteCounts(), [pod("a", "127.1.0.1"), pod("b", "")]
    server = StatsServer("n", lambda: pods, counts=counts, gate=Any, clock=SystemClock())  # type: ignore[arg-type]
    counts.add("127.1.0.1", 5000)
    assert seen(server) == {"a": 0}
    counts.add("127.1.0.1", 100)
    counts.probed("127.1.0.1", msgspec.convert({"httpGet": {"port": 1}}, Probe))
    counts.probed("127.1.0.1", msgspec.convert({"exec": {"command": ["true"]}}, Probe))
    assert seen(server) == {"a": 100 + CONNECTION + 254}
    # Another pod with the same address begins with nothing.
    pods[:] = [pod("c", "127.1.0.1")]
    assert seen(server) == {"c": 0}


async def test_only_who_may_get_nodes_stats_reads_them():
    rules = [{"apiGroups": [""], "resources": ["nodes/stats"], "verbs": ["get"]}]
    rbac = "rbac.authorization.k8s.io"
    async with DevCluster(nodes=1) as cluster, Client(_admin(cluster)) as client:
        await cluster.wait_ready()
        role = {"apiVersion": f"{rbac}/v1", "kind": "ClusterRole", "metadata": {"name": "stats"}}
        await client.resource(f"{rbac}/v1/clusterroles").create({**role, "rules": rules})
        subject = {"kind": "ServiceAccount", "name": "default", "namespace": "default"}
        binding = {
            **role,
            "kind": "ClusterRoleBinding",
            "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": "stats"},
            "subjects": [subject],
        }
        await client.resource(f"{rbac}/v1/clusterrolebindings").create(binding)
        url = f"https://{cluster.ranges.node(1)}:10250/stats/summary"
        found: list[int] = []
        context = await client.config.credentials.ssl_context() or True
        async with aiohttp.ClientSession() as session:
            for namespace in ("default", "kube-system"):
                accounts = client.resource("v1/serviceaccounts", namespace=namespace)
                asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest"}
                token = await accounts.subresource("token").create("default", {**asked, "spec": {}})
                headers = {"Authorization": f"Bearer {token['status']['token']}"}
                async with session.get(url, headers=headers, ssl=context) as response:
                    found.append(response.status)
            async with session.get(url, ssl=context) as response:
                found.append(response.status)
        assert found[:2] == [200, 403]
        assert found[2] in (401, 403)
