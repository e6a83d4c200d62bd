"""The testbed itself: its faults do what they say, it comes back after them, and it leaves nothing."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from kubeloop.client import KubeError
from tests.controlplane.binaries import Binaries
from tests.controlplane.sandbox import ROOT
from tests.e2e.environment import Environment
from tests.e2e.real.cluster import RealCluster
from tests.e2e.real.proxies import ProxyKind
from tests.e2e.real.testbed import RealTestbed, open_testbed
from tests.waiting import eventually_blocking

pytestmark = [pytest.mark.controlplane, pytest.mark.timeout(300)]

LATE = 5.0
# A cluster whose owner is then killed; it says which process is the first inside.
OWNER = """
import sys, time
sys.path.insert(0, sys.argv[1])
from tests.controlplane.binaries import Binaries
from tests.e2e.real.cluster import RealCluster
from tests.e2e.real.proxies import ProxyKind
with RealCluster(Binaries(__import__("pathlib").Path(sys.argv[2])), proxy=ProxyKind.OURS) as cluster:
    print(cluster.rig.sandbox.pid, cluster.rig.directory, flush=True)
    time.sleep(600)
"""


@pytest.fixture(scope="module")
def cluster(controlplane_binaries: Binaries) -> Iterator[RealCluster]:
    with RealCluster(controlplane_binaries, proxy=ProxyKind.OURS) as cluster:
        yield cluster


@pytest.fixture
async def testbed(cluster: RealCluster) -> AsyncIterator[RealTestbed]:
    async with open_testbed(cluster) as testbed:
        await testbed.settled()
        yield testbed


async def test_controllers_and_nodes_come_back_after_the_api_server_was_away(testbed: RealTestbed):
    async with testbed.api_away():
        with pytest.raises((KubeError, OSError)):
            await testbed.client.resource("v1/nodes").get("node-1")
    await testbed.settled()
    namespace = await Environment(testbed).namespace("back")
    accounts = testbed.client.resource("v1/serviceaccounts", namespace=namespace)

    async def made() -> bool:
        return bool([item async for item in accounts.items()])

    await Environment(testbed).until(made, "the controllers work")


async def test_what_was_written_outlives_a_restart_of_etcd(testbed: RealTestbed):
    namespace = await Environment(testbed).namespace("kept")
    await testbed.restart_etcd()
    await testbed.settled()
    assert await testbed.client.resource("v1/namespaces").get(namespace)


async def test_a_delayed_proxy_sees_a_service_late(testbed: RealTestbed):
    """Everything that the proxy hears takes that long; so a Service cannot be reached before."""
    await testbed.delay_endpoints(LATE)
    try:
        environment = Environment(testbed)
        namespace = await environment.namespace("late")
        began = time.monotonic()
        await environment.apply(
            {
                "apiVersion": "v1",
                "kind": "Service",
                "metadata": {"name": "api", "namespace": namespace},
                "spec": {"ports": [{"name": "https", "port": 443}]},
            },
            {
                "apiVersion": "discovery.k8s.io/v1",
                "kind": "EndpointSlice",
                "metadata": {
                    "name": "api",
                    "namespace": namespace,
                    "labels": {"kubernetes.io/service-name": "api"},
                },
                "addressType": "IPv4",
                "ports": [{"name": "https", "port": 6443}],
                "endpoints": [{"addresses": ["10.200.0.1"], "conditions": {"ready": True}}],
            },
        )
        await environment.reachable(await environment.address(namespace, "api"))
        assert time.monotonic() - began >= LATE
    finally:
        await testbed.delay_endpoints(0)


async def test_only_connections_of_pods_are_broken(testbed: RealTestbed):
    connect = (
        "import socket, time\n"
        "held = socket.create_connection(('10.200.0.1', 6443)); print('there', flush=True)\n"
        "try:\n    print(held.recv(1) or 'closed', flush=True)\n"
        "except OSError as error:\n    print('broken', flush=True)\n"
    )
    argv = [sys.executable, "-c", connect]
    async with (
        _process(testbed, ["env", "POD_NAME=somebody", *argv]) as pod,
        _process(testbed, argv) as other,
    ):
        for process in (pod, other):
            assert await _line(process) == "there"
        assert await asyncio.to_thread(testbed.cluster.break_connections) == 1
        assert await _line(pod) == "broken"
        assert other.returncode is None


@contextlib.asynccontextmanager
async def _process(
    testbed: RealTestbed, argv: list[str]
) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await testbed.spawn(argv, stdout=subprocess.PIPE)
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.communicate()


async def _line(process: asyncio.subprocess.Process) -> str:
    assert process.stdout is not None
    return (await asyncio.wait_for(process.stdout.readline(), 60)).decode().strip()


def test_nothing_is_left_when_the_owner_is_killed(controlplane_binaries: Binaries):
    argv = [sys.executable, "-c", OWNER, str(ROOT), str(controlplane_binaries.directory)]
    owner = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    with owner.stdout:
        first, directory = owner.stdout.readline().split()
        inside = Path(f"/proc/{first}/ns/net").readlink()
        assert _living_in(inside)
        owner.send_signal(signal.SIGKILL)
        owner.wait()
    eventually_blocking(
        lambda: not _living_in(inside) and not Path(directory).exists(),
        "the end of all processes and of the directory",
        timeout=60,
    )


def _living_in(namespace: Path) -> list[str]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (process / "ns/net").readlink() == namespace:
                found.append(process.name)
    return found
