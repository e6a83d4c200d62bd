"""The real control plane as a testbed, with our service proxy or with kube-proxy.

    async with real_testbed(binaries, ProxyKind.KUBE_PROXY) as testbed:
        environment = Environment(testbed)

    with RealCluster(binaries, proxy=ProxyKind.KUBE_PROXY) as cluster:      # on no event loop
        async with open_testbed(cluster) as testbed: ...                        # on the running one

A start takes six seconds, so tests share one of each kind. `testbed.settled()` waits until it is whole
again after a fault. `testbed.cluster` is the cluster itself, for what a `Testbed` has no word for.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from kubeloop.client import Client
from tests.controlplane.binaries import Binaries
from tests.controlplane.rig import AUDIT_LOG
from tests.e2e.real.cluster import RealCluster
from tests.e2e.real.proxies import ProxyKind
from tests.e2e.testbed import Testbed

# Our proxy is a relay and needs two descriptors for each. With kube-proxy every connection to one Service comes
# from one address, and has a port of its own there.
_MOST_CONNECTIONS = {ProxyKind.OURS: 5_000, ProxyKind.KUBE_PROXY: 20_000}


class RealTestbed(Testbed):
    """A real control plane; see `real_testbed`."""

    def __init__(self, cluster: RealCluster, client: Client) -> None:
        self.most_connections = _MOST_CONNECTIONS[cluster.kind]
        self.cluster = cluster
        self.client = client
        self.kubeconfig = cluster.rig.kubeconfig
        self.audit = cluster.rig.logs / AUDIT_LOG
        self.name = f"control plane, {cluster.kind.value}"

    def inside(self, argv: Sequence[str]) -> Sequence[str]:
        """Enter the cluster's network; what runs there ends with the cluster at the latest."""
        return self.cluster.rig.inside(argv)

    @contextlib.asynccontextmanager
    async def api_away(self) -> AsyncIterator[None]:
        """Kill the API server, and start it after the block; it serves when this returns."""
        await asyncio.to_thread(self.cluster.stop_api_server)
        try:
            yield
        finally:
            await asyncio.to_thread(self.cluster.start_api_server)

    async def restart_etcd(self) -> None:
        """Kill etcd and start it again."""
        await asyncio.to_thread(self.cluster.restart_etcd)

    async def drop_watches(self) -> int:
        """Break every connection that pods have to the API server; returns how many."""
        return await asyncio.to_thread(self.cluster.break_connections)

    async def delay_endpoints(self, seconds: float) -> None:
        """Let the service proxy hear the API server late."""
        await asyncio.to_thread(self.cluster.delay_endpoints, seconds)

    async def settled(self) -> None:
        """Wait until controllers, scheduler, nodes and proxy work; those that left come back."""
        await asyncio.to_thread(self.cluster.wait_ready)


@contextlib.asynccontextmanager
async def open_testbed(cluster: RealCluster) -> AsyncIterator[RealTestbed]:
    """Return a running cluster as a testbed, for the running loop."""
    async with Client.from_kubeconfig([cluster.rig.kubeconfig]) as client:
        yield RealTestbed(cluster, client)


@contextlib.asynccontextmanager
async def real_testbed(
    binaries: Binaries, proxy: ProxyKind, *, logs: Path | None = None
) -> AsyncIterator[RealTestbed]:
    """Run a cluster during the block."""
    cluster = RealCluster(binaries, proxy=proxy, logs=logs)
    await asyncio.to_thread(cluster.__enter__)
    try:
        async with open_testbed(cluster) as testbed:
            yield testbed
    finally:
        await asyncio.to_thread(cluster.__exit__, None, None, None)
