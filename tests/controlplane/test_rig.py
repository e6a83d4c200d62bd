"""The real control plane starts, is real, can be disturbed, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.controlplane.api import ApiError
from tests.controlplane.component import ComponentError
from tests.controlplane.rig import ControlPlane, Options
from tests.controlplane.sandbox import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.controlplane.binaries import Binaries

pytestmark = pytest.mark.controlplane

API_ONLY = Options(controllers=False, scheduler=False)
PODS = "/api/v1/namespaces/{}/pods"


@pytest.fixture(scope="module")
def api_only(controlplane_binaries: Binaries) -> Iterator[ControlPlane]:
    """A control plane of this module's own, to be stopped, killed and frozen."""
    with ControlPlane(controlplane_binaries, API_ONLY) as rig:
        yield rig


def deployment(name: str, replicas: int) -> dict[str, Any]:
    labels = {"app": name}
    return {
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {"containers": [{"name": "main", "image": "none"}]},
            },
        },
    }


def endpoint_slice(address: str) -> dict[str, Any]:
    return {
        "metadata": {"generateName": "slice-"},
        "addressType": "IPv4",
        "endpoints": [{"addresses": [address]}],
        "ports": [{"port": 80}],
    }


def config_map(value: str) -> dict[str, Any]:
    return {"metadata": {"generateName": "map-"}, "data": {"value": value}}


def network_namespace_of(pid: int | str) -> str:
    return str(Path(f"/proc/{pid}/ns/net").readlink())


def processes_in(namespace: str) -> set[int]:
    """The processes that live in a network namespace."""
    found = set()
    for process in Path("/proc").iterdir():
        try:
            if process.name.isdigit() and network_namespace_of(process.name) == namespace:
                found.add(int(process.name))
        except OSError:
            continue  # ended while we looked
    return found


def wait_for_the_end_of(pids: set[int], timeout: float = 10.0) -> None:
    deadline = time.monotonic() + timeout
    for pid in pids:
        try:
            fd = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            ended, _, _ = select.select([fd], [], [], max(0.0, deadline - time.monotonic()))
            assert ended, f"process {pid} still runs"
        finally:
            os.close(fd)


def test_runs_beside_another_and_shares_nothing_with_it(
    controlplane: ControlPlane, controlplane_binaries: Binaries
) -> None:
    with ControlPlane(controlplane_binaries) as other:
        mine, theirs = controlplane.create_namespace(), other.create_namespace()
        assert controlplane.api.request("GET", f"/api/v1/namespaces/{theirs}").status == 404
        assert other.api.request("GET", f"/api/v1/namespaces/{mine}").status == 404


def test_runs_the_pinned_release_and_kubectl_works_from_outside(
    controlplane: ControlPlane,
) -> None:
    versions = json.loads(controlplane.kubectl("version", "--output=json"))
    client, server = versions["clientVersion"], versions["serverVersion"]
    assert client["gitVersion"] == server["gitVersion"]
    assert server["gitVersion"].startswith("v1.")
    assert (server["major"], server["minor"]) == tuple(server["gitVersion"][1:].split(".")[:2])


def test_an_unbound_service_account_is_known_but_forbidden(controlplane: ControlPlane) -> None:
    namespace = controlplane.create_namespace()
    api = controlplane.api_as(controlplane.service_account_token(namespace, "default"))
    who = api.create("/apis/authentication.k8s.io/v1/selfsubjectreviews", {})
    user = who["status"]["userInfo"]["username"]
    assert user == f"system:serviceaccount:{namespace}:default"
    with pytest.raises(ApiError, match="cannot list resource") as refusal:
        api.get(PODS.format(namespace))
    assert refusal.value.status == 403


def test_a_deployment_becomes_pods_and_they_are_bound_to_a_node(
    controlplane: ControlPlane,
) -> None:
    api, namespace = controlplane.api, controlplane.create_namespace()
    node = controlplane.create_node()["metadata"]["name"]
    apps = f"/apis/apps/v1/namespaces/{namespace}"
    web = deployment("web", replicas=3)
    # Other tests leave nodes on the control plane that they share with this one.
    web["spec"]["template"]["spec"]["nodeSelector"] = {"kubernetes.io/hostname": node}
    api.create(f"{apps}/deployments", web)

    def bound(pods: list[dict[str, Any]]) -> bool:
        return [pod["spec"].get("nodeName") for pod in pods] == [node] * 3

    pods = api.until(PODS.format(namespace), bound)
    (replica_set,) = api.get(f"{apps}/replicasets")["items"]
    owners = {pod["metadata"]["ownerReferences"][0]["uid"] for pod in pods}
    assert owners == {replica_set["metadata"]["uid"]}


def test_private_addresses_make_endpoints_and_loopback_does_not(
    controlplane: ControlPlane,
) -> None:
    namespace = controlplane.create_namespace()
    path = f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices"
    controlplane.api.create(path, endpoint_slice("10.200.3.4"))
    with pytest.raises(ApiError, match="loopback") as refusal:
        controlplane.api.create(path, endpoint_slice("127.1.2.3"))
    assert refusal.value.status == 422


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_data_survives_the_api_server(api_only: ControlPlane, end: str) -> None:
    api, path = api_only.api, "/api/v1/namespaces/default/configmaps"
    name = api.create(path, config_map(end))["metadata"]["name"]
    getattr(api_only.apiserver, end)()
    assert not api_only.apiserver.running
    with pytest.raises(OSError):
        api.get("/readyz")
    api_only.apiserver.start()
    assert api.get(f"{path}/{name}")["data"] == {"value": end}


def test_history_is_gone_after_compaction_and_a_restart(api_only: ControlPlane) -> None:
    api, path = api_only.api, "/api/v1/namespaces/default/configmaps"
    before = api.create(path, config_map("a"))["metadata"]["resourceVersion"]
    api.create(path, config_map("b"))
    assert api_only.compact() > int(before)
    api_only.apiserver.restart()
    with pytest.raises(ApiError) as gone:
        next(api.watch(path, before, timeout=5.0))
    assert gone.value.status == 410


def test_a_frozen_api_server_hangs_and_thaws(api_only: ControlPlane) -> None:
    api_only.apiserver.freeze()
    try:
        with pytest.raises(TimeoutError):
            api_only.api_within(0.2).get("/version")
    finally:
        api_only.apiserver.thaw()
    assert api_only.api.get("/version")["gitVersion"]


def test_programs_inside_may_bind_pod_addresses_and_reach_the_api_server(
    api_only: ControlPlane,
) -> None:
    bind = "import socket; print(socket.create_server(('10.200.7.8', 80)).getsockname()[0])"
    assert api_only.run_inside([sys.executable, "-c", bind]) == "10.200.7.8\n"
    kubectl = [api_only.binaries.path("kubectl"), f"--kubeconfig={api_only.kubeconfig_inside}"]
    assert "kube-system" in api_only.run_inside([*kubectl, "get", "namespaces"])


def test_an_unprivileged_user_can_have_one(controlplane_binaries: Binaries) -> None:
    options = Options(controllers=False, scheduler=False, user_namespace=True)
    with ControlPlane(controlplane_binaries, options) as rig:
        ours = Path("/proc/self/ns/user")
        assert not Path(f"/proc/{rig.apiserver.pid}/ns/user").samefile(ours)
        assert rig.api.get("/version")["gitVersion"]
        assert rig.run_inside(["id", "-u"]) == "0\n"


OWNER = """
import json, os, sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from tests.controlplane.binaries import Binaries
from tests.controlplane.component import ComponentError
from tests.controlplane.rig import ControlPlane

rig = ControlPlane(Binaries(Path(sys.argv[2])))
# One that has left its parent behind, as a pod's process may.
rig.popen_inside(["sh", "-c", "setsid sh -c 'sleep 1000 & echo up' "], stdout=2).wait()
namespace = os.readlink(f"/proc/{rig.apiserver.pid}/ns/net")
print(json.dumps({"directory": str(rig.directory), "namespace": namespace}), flush=True)
sys.stdin.read()
"""


def test_nothing_is_left_when_the_owner_is_killed(controlplane_binaries: Binaries) -> None:
    command = [sys.executable, "-c", OWNER, str(ROOT), str(controlplane_binaries.directory)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        left = json.loads(owner.stdout.readline())
        inside = processes_in(left["namespace"])
        # Guard, init, the orphan, and four components with their companions.
        assert len(inside) == 11
        owner.kill()
    wait_for_the_end_of(inside)
    assert processes_in(left["namespace"]) == set()
    assert not Path(left["directory"]).exists()


def test_nothing_is_left_after_an_orderly_end(controlplane_binaries: Binaries) -> None:
    with ControlPlane(controlplane_binaries, API_ONLY) as rig:
        namespace = network_namespace_of(rig.apiserver.pid)
        assert processes_in(namespace)
    assert processes_in(namespace) == set()
    assert not rig.directory.exists()


def test_a_program_that_does_not_start_says_why(controlplane_binaries: Binaries) -> None:
    options = Options(apiserver_flags=("--no-such-flag",))
    with pytest.raises(ComponentError, match=r"(?s)ended with status 1.*--no-such-flag"):
        ControlPlane(controlplane_binaries, options)
