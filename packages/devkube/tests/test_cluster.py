"""The composition: components with their own rights, knobs, directories, addresses."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.apiserver.harness import connected
from tests.cluster_support import Refusals, Running, running

from devkube import addresses, datadir, kubeconfig
from devkube.auth.install import CONTROLLER_MANAGER, SERVICE_PROXY
from devkube.certificates import PemKeyPair
from devkube.cluster import ComponentFailed, DevCluster, PortInUse
from devkube.faults import CONTROLLERS, NODES, PROXY
from kubeloop.client import Client, Forbidden
from tests.waiting import eventually


def web(replicas: int = 2, kind: str = "Deployment") -> dict[str, Any]:
    labels = {"app": "web"}
    spec: dict[str, Any] = {"containers": [{"name": "web", "image": "none"}]}
    return {
        "apiVersion": "apps/v1",
        "kind": kind,
        "metadata": {"name": "web", "namespace": "default"},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": spec},
            **({"serviceName": "web"} if kind == "StatefulSet" else {}),
        },
    }


async def count(client: Client, resource: str, namespace: str = "default") -> int:
    found = client.resource(resource, namespace=namespace)
    return len([item async for item in found.items()])


async def test_the_components_manage_with_the_rights_they_have(tmp_path: Path) -> None:
    async with running(tmp_path, nodes=0) as run:
        refusals = Refusals()
        run.cluster.auth.gate.authorizers.append(refusals)
        client = run.client
        await client.resource("apps/v1/deployments").create(web())
        await client.resource("apps/v1/statefulsets").create(web(kind="StatefulSet"))
        service = {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "web", "namespace": "default"},
            "spec": {"selector": {"app": "web"}, "ports": [{"port": 80}]},
        }
        await client.resource("v1/services").create(service)
        node = {"metadata": {"name": "n"}, "status": {"allocatable": {"pods": "9", "cpu": "4"}}}
        await client.resource("v1/nodes").create({"apiVersion": "v1", "kind": "Node", **node})
        made = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "temporary"}}
        await client.resource("v1/namespaces").create(made)

        async def settled() -> bool:
            pods = await count(client, "v1/pods")
            slices = await count(client, "discovery.k8s.io/v1/endpointslices")
            accounts = await count(client, "v1/serviceaccounts", "temporary")
            return (pods, slices, accounts) == (3, 2, 1)

        await eventually(settled)
        await client.resource("v1/namespaces").delete("temporary")
        await client.resource("apps/v1/deployments", namespace="default").delete("web")

        async def gone() -> bool:
            names = [n["metadata"]["name"] async for n in client.resource("v1/namespaces").items()]
            return "temporary" not in names and await count(client, "v1/pods") == 1

        await eventually(gone)
        assert refusals.seen == []


async def test_each_component_is_itself_and_no_more_than_that(tmp_path: Path) -> None:
    async with running(tmp_path, nodes=0) as run:
        server = run.cluster.server
        for config, allowed, refused in (
            (server.client_config(SERVICE_PROXY), "v1/services", "v1/secrets"),
            (
                server.client_config("system:node:a", ["system:nodes"]),
                "v1/pods",
                "apps/v1/deployments",
            ),
        ):
            async with Client(config) as client:
                await count(client, allowed, "")
                with pytest.raises(Forbidden):
                    await count(client, refused, "")
        async with Client(server.client_config(CONTROLLER_MANAGER)) as client:
            role = {
                "apiVersion": "rbac.authorization.k8s.io/v1",
                "kind": "ClusterRole",
                "metadata": {"name": "mine"},
                "rules": [],
            }
            with pytest.raises(Forbidden):
                await client.resource("rbac.authorization.k8s.io/v1/clusterroles").create(role)


# Starting


async def test_a_port_in_use_is_reported_with_its_number() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(PortInUse, match=f"port {port} on 127.0.0.1 is in use; .*--port"):
            async with DevCluster(port=port, nodes=0):
                pass


async def test_clusters_run_side_by_side(tmp_path: Path) -> None:
    async with DevCluster(nodes=0) as one, DevCluster(nodes=0) as other:
        assert one.ranges != other.ranges
        assert one.url != other.url


async def test_a_directory_serves_one_cluster_at_a_time(tmp_path: Path) -> None:
    async with DevCluster(nodes=0, data_dir=tmp_path / "data"):
        with pytest.raises(datadir.DirectoryInUse, match=r"process \d+\); stop that one"):
            async with DevCluster(nodes=0, data_dir=tmp_path / "data"):
                pass
    async with DevCluster(nodes=0, data_dir=tmp_path / "data"):
        pass


async def test_a_directory_keeps_its_addresses(tmp_path: Path) -> None:
    async with DevCluster(nodes=0), DevCluster(nodes=0, data_dir=tmp_path) as first:
        name = first.ranges.name
    async with DevCluster(nodes=0, data_dir=tmp_path) as second:
        assert second.ranges.name == name


async def test_a_directory_keeps_its_nodes(tmp_path: Path) -> None:
    async with DevCluster(nodes=2, data_dir=tmp_path) as first:
        await first.wait_ready()
    async with DevCluster(data_dir=tmp_path) as second:
        await second.wait_ready()
        assert second.node_names == ("node-1", "node-2")
        assert [kubelet.node_name for kubelet in second.kubelets] == ["node-1", "node-2"]


async def test_services_move_where_the_old_addresses_are_taken(tmp_path: Path) -> None:
    data = tmp_path / "data"

    async def address(run: Running) -> ipaddress.IPv4Address:
        text = await run.kubectl("get", "svc", "web", "-o", "jsonpath={.spec.clusterIP}")
        return ipaddress.IPv4Address(text)

    async with running(tmp_path, nodes=0, data_dir=data) as run:
        await run.kubectl("create", "service", "clusterip", "web", "--tcp=80")
        await run.kubectl("create", "service", "clusterip", "headless", "--clusterip=None")
        name, before = run.cluster.ranges.name, await address(run)
    with addresses.reserved(preferred=name) as taken:
        assert taken.name == name
        async with running(tmp_path, nodes=0, data_dir=data) as run:
            assert run.cluster.ranges.name != name
            after = await address(run)
            assert after in ipaddress.ip_network(run.cluster.ranges.services)
            assert int(after) % 65536 == int(before) % 65536
            listed = await run.kubectl("get", "services", "--field-selector=spec.clusterIP=None")
            assert "headless" in listed
            await run.kubectl("create", "service", "clusterip", "other", "--tcp=80")


async def test_objects_certificates_and_tokens_outlive_the_process(tmp_path: Path) -> None:
    data = tmp_path / "data"
    async with running(tmp_path, nodes=0, data_dir=data) as run:
        port = run.cluster.server.port
        await run.kubectl("create", "configmap", "kept", "--from-literal=a=b")
        token = (await run.kubectl("create", "token", "default")).strip()
    async with DevCluster(nodes=0, data_dir=data, port=port) as cluster:
        await cluster.wait_ready()
        # The old kubeconfig, untouched.
        assert "kept" in await run.kubectl("get", "configmap", "kept", "-o", "name")
        async with connected(cluster.server, "") as nobody:
            assert (await nobody.send("GET", "/api", token=token)).code == 200


async def test_a_component_that_dies_is_reported(tmp_path: Path) -> None:
    async with DevCluster(nodes=0) as cluster:
        cluster._component_failed("controllers", RuntimeError("out of ideas"))
        with pytest.raises(ComponentFailed, match="controllers failed: out of ideas"):
            await cluster.failed()
        with pytest.raises(ComponentFailed):
            await cluster.wait_ready()


def test_so_many_nodes_are_refused() -> None:
    with pytest.raises(ValueError, match="251 is not between 0 and 250"):
        DevCluster(nodes=251)


async def test_a_cancelled_start_leaves_nothing(tmp_path: Path) -> None:
    for delay in (0.0, 0.005, 0.02, 0.05):

        async def start() -> None:
            async with DevCluster(nodes=0, data_dir=tmp_path):
                await asyncio.Event().wait()

        task = asyncio.create_task(start())
        await asyncio.sleep(delay)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    async with DevCluster(nodes=0, data_dir=tmp_path) as cluster:
        await cluster.wait_ready()


# Knobs


async def test_a_paused_controller_does_its_work_later(tmp_path: Path) -> None:
    async with running(tmp_path, nodes=0) as run, connected(run.cluster.server) as admin:
        paused = await admin.create(CONTROLLERS, {"pause": ["replicaset"]})
        assert paused["controllers"]["replicaset"] == "paused", paused
        await run.client.resource("apps/v1/deployments").create(web())
        replica_sets = "apps/v1/replicasets"

        async def made() -> bool:
            return await count(run.client, replica_sets) == 1

        await eventually(made)
        assert await count(run.client, "v1/pods") == 0
        resumed = await admin.create(CONTROLLERS, {"resume": ["replicaset"]})
        assert resumed["controllers"]["replicaset"] == "running"

        async def complete() -> bool:
            return await count(run.client, "v1/pods") == 2

        await eventually(complete)
        unknown = await admin.create(CONTROLLERS, {"pause": ["x"]})
        assert (unknown.code, "there are: " in unknown["message"]) == (400, True)
        assert (await admin.create(CONTROLLERS, {"halt": ["x"]})).code == 400


async def test_a_partitioned_node_gets_no_answer_until_it_is_healed(tmp_path: Path) -> None:
    async with DevCluster(nodes=0) as cluster:
        cluster.node_names = ()
        cluster.partitions.cut("a")
        async with (
            Client(cluster.server.client_config("system:node:a", ["system:nodes"])) as cut,
            Client(cluster.server.client_config("system:node:b", ["system:nodes"])) as other,
        ):
            waiting = asyncio.create_task(count(cut, "v1/pods", ""))
            await count(other, "v1/pods", "")
            done, _ = await asyncio.wait({waiting}, timeout=0.2)
            assert not done
            cluster.partitions.heal("a")
            await asyncio.wait_for(waiting, 30)


async def test_the_proxy_can_be_made_slow(tmp_path: Path) -> None:
    async with DevCluster(nodes=0) as cluster, connected(cluster.server) as admin:
        assert (await admin.get(PROXY)).body == {"delay": 0.0, "jitter": 0.0}
        slow = await admin.create(PROXY, {"delay": 2.5})
        assert slow.body == {"delay": 2.5, "jitter": 0.0}
        assert cluster.propagation.delay == 2.5
        assert (await admin.create(PROXY, {"jitter": -1})).code == 400
        assert (await admin.create(NODES, {"partition": ["x"]})).code == 400


async def test_knobs_are_the_administrators(tmp_path: Path) -> None:
    async with DevCluster(nodes=0) as cluster, connected(cluster.server, "x", ()) as x:
        for path in (CONTROLLERS, NODES, PROXY, "/_dev/faults"):
            assert (await x.get(path)).code == 403


async def test_every_user_may_read_what_differs_from_machines(tmp_path: Path) -> None:
    async with DevCluster(nodes=0) as cluster, connected(cluster.server, "x", ()) as x:
        assert (await x.get("/devkube")).body == {"pods": "processes", "images": "not pulled"}


# Kubeconfig files

ACCESS = kubeconfig.ClusterAccess(
    name="devkube",
    server="https://127.0.0.1:1",
    authority=b"ca",
    identity=PemKeyPair(b"c", b"k"),
)


def test_a_new_kubeconfig_is_ours_alone_and_private(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "kube.yaml"
    assert kubeconfig.write(path, ACCESS) is True
    assert path.stat().st_mode & 0o077 == 0
    document = yaml.safe_load(path.read_text())
    assert document["current-context"] == "devkube"
    assert document["clusters"][0]["cluster"]["server"] == "https://127.0.0.1:1"
    assert [entry.name for entry in path.parent.iterdir()] == ["kube.yaml"]


def test_an_existing_kubeconfig_keeps_everything(tmp_path: Path) -> None:
    path = tmp_path / "config"
    before = {
        "apiVersion": "v1",
        "kind": "Config",
        "preferences": {"colors": True},
        "clusters": [{"name": "prod", "cluster": {"server": "https://prod"}}],
        "users": [{"name": "me", "user": {"token": "secret"}}],
        "contexts": [{"name": "prod", "context": {"cluster": "prod", "user": "me"}}],
        "current-context": "prod",
    }
    path.write_text(yaml.safe_dump(before))
    assert kubeconfig.write(path, ACCESS) is False
    assert kubeconfig.write(path, ACCESS) is False
    after = yaml.safe_load(path.read_text())
    assert after["current-context"] == "prod"
    assert after["preferences"] == {"colors": True}
    for kind in ("clusters", "users", "contexts"):
        assert after[kind][0] == before[kind][0]  # type: ignore[index]
        assert [entry["name"] for entry in after[kind][1:]] == ["devkube"]


@pytest.mark.parametrize("text", ["- a\n- b\n", "kind: Deployment\n", "a: [\n", "just text"])
def test_a_file_that_is_not_a_kubeconfig_is_left_alone(tmp_path: Path, text: str) -> None:
    path = tmp_path / "file"
    path.write_text(text)
    with pytest.raises(kubeconfig.KubeconfigError, match="left alone"):
        kubeconfig.write(path, ACCESS)
    assert path.read_text() == text


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "real" / "config")
    kubeconfig.write(link, ACCESS)
    assert link.is_symlink()
    assert (tmp_path / "real" / "config").exists()
