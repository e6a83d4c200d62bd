"""Installed by the command, on Kubernetes' own control plane: everything with its own rights only.

The commands are those that a person types; the programs run as pods of what they apply.
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kubeloop.objects.meta import JsonObject
from tests.controlplane.binaries import Binaries
from tests.e2e.environment import Environment
from tests.e2e.probing import probing
from tests.e2e.real.proxies import ProxyKind
from tests.e2e.real.testbed import RealTestbed, real_testbed
from tests.e2e.workload import PORT, App

pytestmark = [pytest.mark.controlplane, pytest.mark.timeout(600)]

RATE = 50.0
ELASTI = [sys.executable, "-m", "elasti"]
RBAC = "rbac.authorization.k8s.io/v1"
HASTE = [
    "--image=elasti:e2e",
    "--env", "operator:POLLING_INTERVAL=1s", "--env", "operator:ELASTI_ENGAGE_SETTLE=2s",
    "--env", "operator:ELASTI_RELEASE_SETTLE=1s", "--env", "resolver:ELASTI_ENGAGE_SETTLE=2s",
]  # fmt: skip
RPC = re.compile(r'^elasti_resolver_operator_rpc_count\{error="(\w*)"\} ([0-9.]+)$', re.MULTILINE)
METRICS = """
import sys, urllib.request
for address in sys.argv[1:]:
    print(urllib.request.urlopen(f"http://{address}:8013/metrics", timeout=30).read().decode())
"""
ASK = """
import sys, urllib.request
with urllib.request.urlopen(sys.argv[1], timeout=90) as answer:
    print(answer.status)
"""


class Commands:
    """A cluster and the commands that change it."""

    def __init__(self, testbed: RealTestbed) -> None:
        self.testbed = testbed
        self.environment = Environment(testbed)

    async def __call__(self, *arguments: str) -> tuple[int, str]:
        access = ["--kubeconfig", str(self.testbed.kubeconfig)]
        process = await asyncio.create_subprocess_exec(
            *ELASTI,
            *arguments,
            *access,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output, _ = await process.communicate()
        assert process.returncode is not None
        return process.returncode, output.decode()

    async def ok(self, *arguments: str) -> str:
        code, said = await self(*arguments)
        assert code == 0, said
        return said

    async def cluster_roles(self) -> set[str]:
        """Return what of Elasti is the whole cluster's."""
        return {
            item["metadata"]["name"]
            for kind in ("clusterroles", "clusterrolebindings")
            async for item in self.testbed.client.resource(f"{RBAC}/{kind}").items()
            if item["metadata"]["name"].startswith("elasti")
        }

    async def ask(self, namespace: str) -> str:
        """Send a request to the app's Service, and return the status."""
        address = await self.environment.address(namespace, "web")
        argv = [sys.executable, "-c", ASK, f"http://{address.host}:{PORT}/one"]
        process = await self.testbed.spawn(argv, stdout=asyncio.subprocess.PIPE)
        output, _ = await process.communicate()
        return output.decode().strip()

    async def calls_to_the_operator(self) -> dict[str, float]:
        """Return how many of the resolvers' calls ended how."""
        pods = await self.environment.resolver_pods()
        addresses = [pod["status"]["podIP"] for pod in pods]
        argv = [sys.executable, "-c", METRICS, *addresses]
        process = await self.testbed.spawn(argv, stdout=asyncio.subprocess.PIPE)
        output, _ = await process.communicate()
        assert process.returncode == 0
        counts: dict[str, float] = {}
        for ending, count in RPC.findall(output.decode()):
            if float(count):
                counts[ending] = counts.get(ending, 0.0) + float(count)
        return counts

    async def replicas(self, namespace: str) -> int:
        deployments = self.testbed.client.resource("apps/v1/deployments", namespace=namespace)
        return int((await deployments.get("web"))["spec"]["replicas"])

    async def elastiservice(self, namespace: str) -> JsonObject:
        objects = self.testbed.client.resource("elasti.truefoundry.com/v1alpha1/elastiservices")
        return await objects.get("web", namespace=namespace)

    async def under_load(self, namespace: str, directory: Path, *arguments: str) -> None:
        """Run a command while requests arrive at the app's Service, and lose none of them."""
        address = await self.environment.address(namespace, "web")
        run = "-".join(word.strip("-") for word in arguments)
        async with probing(self.environment, directory, [address], run=run) as probe:
            await probe.rate(RATE)
            await self.ok(*arguments)
            _, records = await probe.finish()
        lost = [(record.fault.value, record.detail) for record in records if record.fault.value]
        assert lost == []
        assert any(record.held for record in records), "the app was awake before anybody came"
        assert not records[-1].via_resolver


@pytest.fixture
async def elasti(controlplane_binaries: Binaries) -> AsyncIterator[Commands]:
    async with real_testbed(controlplane_binaries, ProxyKind.OURS) as testbed:
        yield Commands(testbed)


async def works(elasti: Commands, namespace: str) -> None:
    """A request wakes the app, by a call that the operator takes, and the app sleeps again."""
    calls: dict[str, float] = {}
    for _ in range(3):
        await asleep(elasti, namespace)
        assert await elasti.ask(namespace) == "200"
        # Refused calls would not have failed the request: the wish is then written down. A resolver
        # that an installation replaces may have made the call, and is gone with what it counted.
        calls = await elasti.calls_to_the_operator()
        if calls:
            break
    assert calls.get(""), calls
    await asleep(elasti, namespace)


async def asleep(elasti: Commands, namespace: str) -> None:
    await elasti.environment.reaches(namespace, "web", "Proxy")
    assert await elasti.replicas(namespace) == 0


async def test_installed_it_works_with_its_own_rights_and_uninstalled_nothing_is_dark(
    elasti: Commands, tmp_path: Path
):
    said = await elasti.ok("install", *HASTE)
    assert "elasti-operator: 2 of 2 available" in said
    again = await elasti.ok("install", *HASTE, "--dry-run")
    assert all(line.endswith(" unchanged") for line in again.splitlines()), again
    shop = await elasti.environment.namespace("shop")
    elasti.testbed.client.mapper.invalidate()
    await elasti.environment.apply(
        *App(namespace=shop, executed=tmp_path, linger=1.0, cooldown=2).objects()
    )
    await works(elasti, shop)

    # The same again with fewer rights: the others go, and it works on.
    namespaced = ["--namespaced", "--watch-namespace", shop]
    said = await elasti.ok("install", *HASTE, *namespaced)
    assert "ClusterRole elasti-operator removed" in said
    assert await elasti.cluster_roles() == set()
    await works(elasti, shop)

    await elasti.under_load(shop, tmp_path, "uninstall", "--yes", "--keep-crd")
    assert await elasti.replicas(shop) == 1
    assert await elasti.ask(shop) == "200"
    assert not (await elasti.elastiservice(shop))["metadata"].get("finalizers")

    # What was kept sleeps again with the next installation, which is confined from the start.
    await elasti.ok("install", *HASTE, *namespaced, "--no-crd")
    assert await elasti.cluster_roles() == set()
    await works(elasti, shop)

    await elasti.under_load(shop, tmp_path, "uninstall", "--yes")
    assert await elasti.ask(shop) == "200"
    code, said = await elasti("uninstall")
    assert (code, said) == (0, "Nothing of Elasti is in namespace elasti.\n")
