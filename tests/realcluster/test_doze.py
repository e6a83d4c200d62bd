"""Dozes on real nodes: the weight in a container's cgroup, a neighbour in its room, and the way out.

These have the cluster for themselves: they fill a node.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from typing import Any, Self

import pytest

from hack.realcluster.images import APP
from kubeloop.objects.quantities import Quantity
from tests.realcluster.report import Report, percentile
from tests.realcluster.rig import Rig

pytestmark = [pytest.mark.realcluster, pytest.mark.timeout(600)]

NODE = "node-1"
# The second is of cgroup v1, and the first of v2.
WEIGHT = "cat /sys/fs/cgroup/cpu.weight 2>/dev/null || cat /sys/fs/cgroup/cpu/cpu.shares"
_CONFINED = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
_POD = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
# As many loops as this machine has cores, for a while; then the neighbour only takes room.
_BURN = "for core in $(seq $(nproc)); do timeout 20 sh -c 'while :; do :; done' & done; sleep 600"


@pytest.fixture(scope="module")
def dozing(installed: Rig) -> Rig:
    """The installation, with the rights to doze."""
    installed.elasti("install", "--doze")
    return installed


class Clients:
    """Asks the Service again and again from a node, and counts."""

    def __init__(self, rig: Rig, address: str) -> None:
        self._rig, self._url = rig, f"http://{address}/page"
        self._over = threading.Event()
        self.seconds: list[float] = []
        self.lost: list[str] = []
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._over.set()
        self._thread.join(timeout=60)

    def _run(self) -> None:
        show = "%{http_code} %{time_total}"
        while not self._over.is_set():
            try:
                said = self._rig.inside(
                    "node-2", "curl", "-s", "-o", "/dev/null", "-m", "10", "-w", show, self._url
                )
                code, took = said.split()
                self.seconds.append(float(took))
                if code != "200":
                    self.lost.append(code)
            except AssertionError as error:
                self.lost.append(str(error))
            self._over.wait(0.05)

    def latency(self) -> str:
        p50, p99 = (percentile(self.seconds, share) * 1000 for share in (0.5, 0.99))
        return f"p50 {p50:.1f} ms, p99 {p99:.1f} ms of {len(self.seconds)}"


def app(rig: Rig, namespace: str, cpu: str, **spec: Any) -> None:
    """A Deployment that prefers one node, its Service, and an ElastiService that dozes on request."""
    labels, name = {"app": "web"}, {"name": "web", "namespace": namespace}
    term = {"key": "kubernetes.io/hostname", "operator": "In", "values": [NODE]}
    preferred = {"weight": 100, "preference": {"matchExpressions": [term]}}
    container = {
        "name": "app",
        "image": APP,
        "env": [
            {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}
            for name, path in (("POD_NAME", "metadata.name"), ("POD_IP", "status.podIP"))
        ],
        "ports": [{"containerPort": 8080}],
        "readinessProbe": {"httpGet": {"path": "/healthz", "port": 8080}, "periodSeconds": 1},
        "resources": {"requests": {"cpu": cpu, "memory": "32Mi"}, "limits": {"memory": "128Mi"}},
        "securityContext": _CONFINED,
    }
    pod = {
        "securityContext": _POD,
        "containers": [container],
        "affinity": {
            "nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [preferred]}
        },
    }
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}
    rig.apply(
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": name,
            "spec": {
                "replicas": 1,
                "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": pod},
            },
        },
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": name,
            "spec": {"selector": labels, "ports": [{"port": 80, "targetPort": 8080}]},
        },
        {
            "apiVersion": "elasti.truefoundry.com/v1alpha1",
            "kind": "ElastiService",
            "metadata": name,
            "spec": {
                "service": "web",
                "scaleTargetRef": target,
                "cooldownPeriod": 30,
                "triggers": [],
                "sleep": {"mode": "Doze"},
                **spec,
            },
        },
    )
    rig.kubectl("rollout", "status", "deployment/web", "-n", namespace, "--timeout=120s")


def pods(rig: Rig, namespace: str) -> list[Any]:
    found = rig.api.get(f"/api/v1/namespaces/{namespace}/pods?labelSelector=app%3Dweb")["items"]
    return [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]


def weight(rig: Rig, namespace: str, pod: str) -> int:
    return int(rig.kubectl("exec", pod, "-n", namespace, "--", "sh", "-c", WEIGHT))


def actual(pod: Any) -> str:
    return str(pod["status"]["containerStatuses"][0]["resources"]["requests"]["cpu"])


def requested(rig: Rig) -> int:
    """What a node autoscaler sees: the sum of the CPU requests on the node, in millicores."""
    found = rig.api.get(f"/api/v1/pods?fieldSelector=spec.nodeName%3D{NODE}")["items"]
    return (
        sum(
            Quantity.parse(((c.get("resources") or {}).get("requests") or {}).get("cpu", "0")).nanos
            for pod in found
            if pod["status"]["phase"] in ("Pending", "Running")
            for c in pod["spec"]["containers"]
        )
        // 10**6
    )


def until(what: str, holds: Any, seconds: float = 90.0) -> float:
    began = time.monotonic()
    while not holds():
        assert time.monotonic() - began < seconds, f"{what}, after {seconds:.0f} s"
        time.sleep(0.05)
    return time.monotonic() - began


@pytest.fixture
def place(dozing: Rig, request: pytest.FixtureRequest) -> Iterator[str]:
    name = dozing.namespace(f"doze-{request.node.name.replace('_', '-')[:40].rstrip('-')}")
    yield name
    dozing.kubectl("delete", "namespace", name, "--wait=true", "--timeout=180s")


def test_the_cgroup_follows_and_nothing_is_lost(dozing: Rig, place: str, report: Report) -> None:
    app(dozing, place, "400m")
    (pod,) = pods(dozing, place)
    name = pod["metadata"]["name"]
    before, node_before = weight(dozing, place, name), requested(dozing)
    address = dozing.api.get(f"/api/v1/namespaces/{place}/services/web")["spec"]["clusterIP"]
    with Clients(dozing, address) as awake:
        time.sleep(5)
    with Clients(dozing, address) as clients:
        dozing.elasti("sleep", "web", "-n", place, "--wait")
        until("the kubelet confirms 1m", lambda: actual(pods(dozing, place)[0]) == "1m")
        during, node_during = weight(dozing, place, name), requested(dozing)
        time.sleep(5)
        began = time.monotonic()
        dozing.elasti("wake", "web", "-n", place)
        until("the kubelet confirms 400m", lambda: actual(pods(dozing, place)[0]) == "400m")
        took = time.monotonic() - began
    assert during < before
    assert weight(dozing, place, name) == before
    assert [one["metadata"]["name"] for one in pods(dozing, place)] == [name]
    assert pods(dozing, place)[0]["status"]["containerStatuses"][0]["restartCount"] == 0
    assert (awake.lost, clients.lost) == ([], [])
    assert node_before - node_during == 399
    report.note("Doze: CPU weight before, while, after", f"{before}, {during}, {before}")
    report.note("Doze: requests on the node", f"{node_before}m before, {node_during}m while")
    report.note("Doze: from `elasti wake` to confirmed requests", f"{took * 1000:.0f} ms")
    report.note("Doze: latency awake, and dozing", f"{awake.latency()}; {clients.latency()}")


def test_a_neighbour_takes_the_room_and_the_way_out_loses_nothing(
    dozing: Rig, place: str, report: Report
) -> None:
    app(dozing, place, "600m")
    (pod,) = pods(dozing, place)
    if pod["spec"]["nodeName"] != NODE:
        pytest.skip("the scheduler put it on the other node")
    address = dozing.api.get(f"/api/v1/namespaces/{place}/services/web")["spec"]["clusterIP"]
    node = dozing.api.get(f"/api/v1/nodes/{NODE}")
    room = Quantity.parse(node["status"]["allocatable"]["cpu"]).nanos // 10**6
    with Clients(dozing, address) as clients:
        dozing.elasti("sleep", "web", "-n", place, "--wait")
        until("the kubelet confirms 1m", lambda: actual(pods(dozing, place)[0]) == "1m")
        neighbour = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "neighbour", "namespace": place},
            "spec": {
                "securityContext": _POD,
                "nodeSelector": {"kubernetes.io/hostname": NODE},
                "terminationGracePeriodSeconds": 1,
                "containers": [
                    {
                        "name": "main",
                        "image": APP,
                        "command": ["sh", "-c", _BURN],
                        "securityContext": _CONFINED,
                        "resources": {"requests": {"cpu": f"{room - requested(dozing) - 10}m"}},
                    }
                ],
            },
        }
        dozing.kubectl("apply", "-f", "-", stdin=json.dumps(neighbour))
        dozing.kubectl(
            "wait", "pod/neighbour", "-n", place, "--for=condition=Ready", "--timeout=60s"
        )
        with Clients(dozing, address) as crowded:
            time.sleep(15)
        began = time.monotonic()
        dozing.elasti("wake", "web", "-n", place)
        path = f"/apis/elasti.truefoundry.com/v1alpha1/namespaces/{place}/elastiservices/web"

        def stuck() -> bool:
            found = dozing.api.get(path)["status"]["conditions"]
            return any(c["type"] == "DozeStuck" and c["status"] == "True" for c in found)

        until("DozeStuck", stuck)
        named = time.monotonic() - began

        def moved() -> bool:
            there = pods(dozing, place)
            names = {one["metadata"]["name"] for one in there}
            return len(there) == 1 and pod["metadata"]["name"] not in names

        until("the stuck pod went, and one is left", moved, 180)
        until("it is awake", lambda: dozing.api.get(path)["status"]["phase"] == "Awake")
        took = time.monotonic() - began
    assert actual(pods(dozing, place)[0]) == "600m"
    assert pods(dozing, place)[0]["spec"]["nodeName"] != NODE
    assert (clients.lost, crowded.lost) == ([], [])
    report.note("Doze: latency beside a neighbour that burns every core", crowded.latency())
    report.note("Doze: Deferred, named as stuck after", f"{named:.1f} s")
    report.note("Doze: the way out, from `elasti wake` to one full pod elsewhere", f"{took:.1f} s")
    report.note("Doze: latency on a full node", clients.latency())
