"""Traffic on a real control plane: our kubelet's pods behind our service proxy, and behind kube-proxy.

What a client sees must be the same: the Service's address answers while a pod is ready, and refuses
when there is none.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.kubelet.support import ROOT, condition, is_ready, stop, web

from tests.controlplane.rig import ControlPlane

pytestmark = [pytest.mark.controlplane, pytest.mark.slow]

NODE = "proxy-test"
ADDRESS = "10.200.8.1"
NETWORK = "10.200.8.0/24"
# Asks until the answer is the wanted one: propagation takes its time, and its end is what counts.
ASK = """
import sys, time, urllib.error, urllib.request
url, wanted, deadline = sys.argv[1], sys.argv[2], time.monotonic() + 20
while time.monotonic() < deadline:
    try:
        answer = urllib.request.urlopen(url, timeout=1).read().decode()
    except urllib.error.URLError as error:
        answer = type(error.reason).__name__
    except TimeoutError:
        answer = "TimeoutError"
    if wanted in answer:
        sys.exit(print(answer))
    time.sleep(0.02)
sys.exit(f"last answer: {answer}")
"""


@pytest.fixture(scope="module")
def node(controlplane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    kubeconfig = controlplane.kubeconfig_for(f"system:node:{NODE}", ["system:nodes"], inside=True)
    directory = tmp_path_factory.mktemp("kubelet")
    argv = [sys.executable, "-W", "ignore", "-m", "tests.kubelet.inside"]
    argv += [str(kubeconfig), NODE, ADDRESS, NETWORK, str(directory)]
    process = controlplane.popen_inside(argv, cwd=ROOT)
    try:
        selector = f"/api/v1/nodes?fieldSelector=metadata.name={NODE}"
        controlplane.api.until(
            selector, lambda found: bool(found) and condition(found[0], "Ready") == "True"
        )
        controlplane.kubectl("cordon", NODE)
        yield NODE
    finally:
        stop(process)
        controlplane.api.delete(f"/api/v1/nodes/{NODE}")


def proxy_command(rig: ControlPlane, which: str) -> list[str]:
    kubeconfig = rig.kubeconfig_for("system:kube-proxy", inside=True)
    if which == "ours":
        module = "tests.serviceproxy.inside"
        return [sys.executable, "-m", module, str(kubeconfig)]
    if shutil.which("nft") is None:
        missing = pytest.fail if os.environ.get("CI") else pytest.skip
        missing("kube-proxy needs nft: install nftables")
    # Masquerading takes an address of the outgoing interface, and loopback ones do not count.
    rig.run_inside(["ip", "address", "replace", f"{ADDRESS}/32", "dev", "lo"])
    return [
        str(rig.binaries.path("kube-proxy")),
        f"--kubeconfig={kubeconfig}",
        "--proxy-mode=nftables",
        f"--hostname-override={NODE}",
        "--conntrack-max-per-core=0",
        "--conntrack-tcp-timeout-established=0",
        "--conntrack-tcp-timeout-close-wait=0",
        f"--healthz-bind-address={ADDRESS}:10256",
        f"--metrics-bind-address={ADDRESS}:10249",
        "--detect-local-mode=InterfaceNamePrefix",
        "--pod-interface-name-prefix=lo",
    ]


@pytest.mark.parametrize("which", ["ours", "kube-proxy"])
def test_a_service_answers_while_a_pod_is_ready_and_refuses_otherwise(
    controlplane: ControlPlane, node: str, which: str, tmp_path: Path
):
    namespace = controlplane.create_namespace("traffic")
    log = (tmp_path / "proxy.log").open("wb")
    proxy = controlplane.popen_inside(
        proxy_command(controlplane, which), cwd=ROOT, stdout=log.fileno(), stderr=subprocess.STDOUT
    )
    try:
        port = {"name": "http", "port": 80, "targetPort": 8080}
        service = controlplane.api.create(
            f"/api/v1/namespaces/{namespace}/services",
            {"metadata": {"name": "web"}, "spec": {"selector": {"app": "web"}, "ports": [port]}},
        )
        address = f"http://{service['spec']['clusterIP']}/"
        assert "Refused" in ask(controlplane, address, "Refused")
        probe = {"httpGet": {"path": "/", "port": 8080}, "periodSeconds": 1}
        pods = f"/api/v1/namespaces/{namespace}/pods"
        spec = {"containers": [web(8080, readinessProbe=probe)], "nodeName": node}
        meta = {"name": "web", "labels": {"app": "web"}}
        controlplane.api.create(pods, {"metadata": meta, "spec": spec})
        controlplane.api.until(pods, lambda found: bool(found) and is_ready(found[0]))
        assert "hello" in ask(controlplane, address, "hello")
        controlplane.kubectl("-n", namespace, "delete", "pod", "web", "--timeout=20s")
        assert "Refused" in ask(controlplane, address, "Refused")
    except BaseException:
        print((tmp_path / "proxy.log").read_text()[-4000:])
        raise
    finally:
        stop(proxy)
        log.close()


def ask(rig: ControlPlane, address: str, wanted: str) -> str:
    return rig.run_inside([sys.executable, "-c", ASK, address, wanted])
