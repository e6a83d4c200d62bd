"""The two servers that the suite compares, each behind the same few names."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from devkube.cluster import DevCluster
from devkube.kubeconfig import write
from kubeloop.aio.tasks import finish
from tests.conformance.manifests import SHARED_GROUP, definition
from tests.conformance.raw import tls_of_kubeconfig
from tests.controlplane.api import ApiError
from tests.controlplane.rig import ControlPlane
from tests.side_loop import SideLoop

DEVCLUSTER = "devcluster"
CONTROLPLANE = "controlplane"
START_SECONDS = 30.0


class Server(Protocol):
    """An API server with controllers on it. May be used from any thread."""

    @property
    def name(self) -> str:
        """Which of the two it is."""

    @property
    def url(self) -> str:
        """Where it listens."""

    @property
    def kubeconfig(self) -> Path:
        """The administrator's."""

    @property
    def tls(self) -> ssl.SSLContext:
        """The administrator's."""

    def kubeconfig_for(self, user: str, groups: Sequence[str] = ()) -> Path:
        """Make a kubeconfig for a user who may nothing by himself."""

    def compact(self) -> None:
        """Make it forget its history, as time does."""


class RealServer:
    """The real control plane of the session."""

    name = CONTROLPLANE

    def __init__(self, rig: ControlPlane) -> None:
        self._rig = rig
        self.url = rig.url
        self.kubeconfig = rig.kubeconfig
        self.tls = tls_of_kubeconfig(rig.kubeconfig)
        # Early, because the garbage collector looks for new kinds every half minute only.
        definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
        rig.api.create(definitions, definition(SHARED_GROUP))

    def kubeconfig_for(self, user: str, groups: Sequence[str] = ()) -> Path:
        return self._rig.kubeconfig_for(user, groups)

    def compact(self) -> None:
        try:
            self._rig.compact()
        except ApiError as error:
            # Nothing was written since the last time.
            if "has been compacted" not in str(error):
                raise


class DevServer:
    """The dev cluster, on a loop and a thread of its own: tests have a loop each, and it outlives them.

    It has no nodes of its own: a test that needs pods to run has a kubelet that pretends, here as on
    the other server.
    """

    name = DEVCLUSTER

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._side = SideLoop("the dev cluster", self._run, start_seconds=START_SECONDS)

    def start(self) -> None:
        """Return when it serves."""
        self._side.start()

    def stop(self) -> None:
        """End it and return when it has ended; raises what it failed with."""
        self._side.stop()

    def kubeconfig_for(self, user: str, groups: Sequence[str] = ()) -> Path:
        path = self._directory / f"{user}.kubeconfig"
        write(path, self._cluster.access(user, tuple(groups)))
        return path

    def compact(self) -> None:
        self._side.submit(self._compact()).result(START_SECONDS)

    async def _compact(self) -> None:
        self._cluster.server.core.faults.compact()

    async def _run(self, side: SideLoop) -> None:
        async with DevCluster(nodes=0) as self._cluster:
            self.url = self._cluster.url
            self.kubeconfig = self._directory / "kubeconfig"
            write(self.kubeconfig, self._cluster.access())
            self.tls = tls_of_kubeconfig(self.kubeconfig)
            await self._cluster.wait_ready()
            side.ready()
            await self._until_end(side)

    async def _until_end(self, side: SideLoop) -> None:
        failed = asyncio.create_task(self._cluster.failed())
        end = asyncio.create_task(side.until_stopped())
        try:
            await asyncio.wait([failed, end], return_when=asyncio.FIRST_COMPLETED)
            if failed.done():
                await failed
        finally:
            await finish([failed, end])
