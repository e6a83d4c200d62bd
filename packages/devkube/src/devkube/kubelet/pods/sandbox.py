"""The surroundings of a pod's containers: an address, volumes, a way to configure them.

`run` is a task: it gets all of it, reports that, and keeps the volumes up to date until it is cancelled.
`NodeContext` is what the pods of a node share.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from typing import TYPE_CHECKING

from devkube.addresses import AddressPool, NoAddressLeft
from devkube.kubelet.environment import DownwardContext, command, environment, expand
from devkube.kubelet.pods.state import Changed, PodFact, Prepared
from devkube.kubelet.supervisor.spec import ProcessSpec
from devkube.kubelet.volume_sources import ObjectCache, PodReferences, PodTokens
from devkube.kubelet.volumes import PodVolumes, VolumeError
from kubeloop.aio.backoff import Backoff
from kubeloop.aio.wait import rest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from devkube.kubelet.kubelet import KubeletSettings
    from devkube.kubelet.pod_types import ContainerSpec, KubeletPod
    from devkube.kubelet.pods.reporting import PodEvents
    from devkube.kubelet.stats import ByteCounts
    from devkube.kubelet.supervisor.processes import Processes
    from kubeloop.aio.clock import Clock
    from kubeloop.client.client import Client
    from kubeloop.client.resource import Resource
    from kubeloop.controller.events.recorder import EventRecorder


_RETRY = Backoff(duration=0.5, factor=2.0, cap=60.0)


@dataclasses.dataclass(eq=False)
class PodSandbox:
    """One pod's surroundings. `pod` gives the newest version of it."""

    pod: Callable[[], KubeletPod]
    node: NodeContext
    directory: Path
    _: dataclasses.KW_ONLY
    events: PodEvents
    report: Callable[[PodFact], None]

    def __post_init__(self) -> None:
        self._changed = asyncio.Event()
        self._references: PodReferences | None = None
        self._address: str = ""
        self._taken: str = ""
        tokens = PodTokens(self.node.client, self.pod(), clock=self.node.clock)
        self._volumes = PodVolumes(self.directory, tokens=tokens, clock=self.node.clock)

    def recheck(self) -> None:
        """Something that volumes show changed."""
        self._changed.set()

    async def run(self) -> None:
        """Get ready, say so, and keep the volumes up to date."""
        self._address = await self._take_address()
        async with self.node.objects.references(self.pod(), self._changed.set) as objects:
            self._references = objects
            await self._mount(objects)
            self._volumes.write_hosts(self.pod(), self._address)
            self.report(Prepared(self._address))
            while True:
                await self._wait_for_changes()
                with contextlib.suppress(VolumeError):
                    await self._volumes.refresh(self._facts(), objects)
                self.report(Changed())

    def give_back(self) -> None:
        """Free the address; it may be repeated."""
        taken, self._taken = self._taken, ""
        if taken:
            self.node.addresses.free(taken)

    def remove(self) -> None:
        """Free the address and remove the volumes."""
        self.give_back()
        self._volumes.remove()

    async def _take_address(self) -> str:
        if self.pod().spec.host_network:
            return self.node.settings.node_address
        delays = _RETRY.start()
        while True:
            try:
                self._taken = self.node.addresses.take()
            except NoAddressLeft as error:
                self.events.warning(
                    "", "FailedCreatePodSandBox", f"Failed to create pod sandbox: {error}"
                )
                await asyncio.sleep(delays.next_delay())
            else:
                return self._taken

    async def _mount(self, objects: PodReferences) -> None:
        delays = _RETRY.start()
        while True:
            self._changed.clear()
            try:
                await self._volumes.refresh(self._facts(), objects)
            except VolumeError as error:
                self.events.warning("", "FailedMount", str(error))
            else:
                return
            await rest(delays.next_delay(), self._changed)

    async def _wait_for_changes(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(self._volumes.renew_at):
                await self._changed.wait()
        self._changed.clear()

    # Containers

    def configure(self, container: ContainerSpec) -> ProcessSpec:
        """Return what to run. Raises ConfigurationError."""
        assert self._references is not None
        pod, isolated = self.pod(), self.node.processes.isolation.has_namespaces
        base = self._base_environment(pod)
        if not isolated:
            base |= dict(self._volumes.variables(pod, container))
        variables = environment(container, self._facts(), self._references, base)
        if not isolated:
            variables = self._volumes.located(pod, container, variables)
        entrypoint = self.node.settings.entrypoints.get(container.image, ())
        return ProcessSpec(
            argv=command(container, variables, entrypoint),
            env=variables,
            cwd=container.working_dir or "/",
            hostname=pod.hostname,
            mounts=self._volumes.mounts(pod, container) if isolated else (),
        )

    def _base_environment(self, pod: KubeletPod) -> dict[str, str]:
        host, port = self.node.api_server
        own = {
            "HOSTNAME": pod.hostname,
            "POD_IP": self._address,
            "KUBERNETES_SERVICE_HOST": host,
            "KUBERNETES_SERVICE_PORT": str(port),
            "KUBERNETES_SERVICE_PORT_HTTPS": str(port),
        }
        # Pods share the machine's addresses: $(POD_IP) lets a program listen on its own alone.
        given = self.node.settings.environment
        return {**{name: expand(value, own) for name, value in given.items()}, **own}

    def _facts(self) -> DownwardContext:
        host = self.node.settings.node_address
        return DownwardContext(self.pod(), self._address, host)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NodeContext:
    """One node, as its pods' workers see it."""

    root_dir: Path
    settings: KubeletSettings
    client: Client
    pods: Resource[KubeletPod]
    processes: Processes
    objects: ObjectCache
    addresses: AddressPool
    recorder: EventRecorder
    clock: Clock
    api_server: tuple[str, int]
    counts: ByteCounts
