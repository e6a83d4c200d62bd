"""What a pod has before and around its containers: an address, volumes, a way to configure them.

`run` is a task: it gets all of it, says so, and keeps the volumes up to date until it is cancelled.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from elasti.devcluster.kubelet.addresses import NoAddressLeft
from elasti.devcluster.kubelet.environment import command, environment
from elasti.devcluster.kubelet.fields import PodFacts
from elasti.devcluster.kubelet.pods.facts import Changed, Prepared
from elasti.devcluster.kubelet.supervisor.spec import ProcessSpec
from elasti.devcluster.kubelet.volumes.manager import PodVolumes, VolumeError
from elasti.devcluster.kubelet.volumes.tokens import PodTokens
from kubeloop.aio.backoff import Backoff

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from elasti.devcluster.kubelet.objects.containers import Container
    from elasti.devcluster.kubelet.objects.pods import Pod
    from elasti.devcluster.kubelet.pods.facts import Fact
    from elasti.devcluster.kubelet.pods.node import Node
    from elasti.devcluster.kubelet.pods.telling import Voice
    from elasti.devcluster.kubelet.references import References

_RETRY = Backoff(duration=0.5, factor=2.0, cap=60.0)


class PodSandbox:
    """One pod's surroundings. `pod` gives the newest version of it."""

    def __init__(
        self,
        pod: Callable[[], Pod],
        node: Node,
        directory: Path,
        *,
        voice: Voice,
        tell: Callable[[Fact], None],
    ) -> None:
        self._pod = pod
        self._node = node
        self._voice = voice
        self._tell = tell
        self._changed = asyncio.Event()
        self._references: References | None = None
        self._address = ""
        self._taken = ""
        tokens = PodTokens(node.client, pod(), clock=node.clock)
        self._volumes = PodVolumes(directory, tokens=tokens, clock=node.clock)

    @property
    def address(self) -> str:
        """The pod's address; empty until it has one."""
        return self._address

    def look_again(self) -> None:
        """Something that volumes show changed."""
        self._changed.set()

    async def run(self) -> None:
        """Get ready, say so, and keep the volumes up to date."""
        self._address = await self._take_address()
        async with self._node.objects.references(self._pod(), self._changed.set) as objects:
            self._references = objects
            await self._mount(objects)
            self._volumes.write_hosts(self._pod(), self._address)
            self._tell(Prepared(self._address))
            while True:
                await self._wait_for_changes()
                with contextlib.suppress(VolumeError):
                    await self._volumes.refresh(self._facts(), objects)
                self._tell(Changed())

    def give_back(self) -> None:
        """Free the address; it may be repeated."""
        taken, self._taken = self._taken, ""
        if taken:
            self._node.addresses.free(taken)

    def remove(self) -> None:
        """Free the address and remove the volumes."""
        self.give_back()
        self._volumes.remove()

    async def _take_address(self) -> str:
        if self._pod().spec.host_network:
            return self._node.settings.node_address
        delays = _RETRY.start()
        while True:
            try:
                self._taken = self._node.addresses.take()
            except NoAddressLeft as error:
                self._voice.no_address(f"Failed to create pod sandbox: {error}")
                await asyncio.sleep(delays.next_delay())
            else:
                return self._taken

    async def _mount(self, objects: References) -> None:
        delays = _RETRY.start()
        while True:
            self._changed.clear()
            try:
                await self._volumes.refresh(self._facts(), objects)
            except VolumeError as error:
                self._voice.failed_mount(str(error))
            else:
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(delays.next_delay()):
                    await self._changed.wait()

    async def _wait_for_changes(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(self._volumes.renew_at):
                await self._changed.wait()
        self._changed.clear()

    # Containers

    def configure(self, container: Container) -> ProcessSpec:
        """Return what to run. Raises ConfigurationError."""
        assert self._references is not None
        pod, isolated = self._pod(), self._node.processes.isolation.has_namespaces
        base = self._base_environment(pod)
        if not isolated:
            base |= dict(self._volumes.variables(pod, container))
        variables = environment(container, self._facts(), self._references, base)
        if not isolated:
            variables = self._volumes.located(pod, container, variables)
        entrypoint = self._node.settings.entrypoints.get(container.image, ())
        return ProcessSpec(
            argv=command(container, variables, entrypoint),
            env=variables,
            cwd=container.working_dir or "/",
            hostname=pod.hostname,
            mounts=self._volumes.mounts(pod, container, variables) if isolated else (),
        )

    def _base_environment(self, pod: Pod) -> dict[str, str]:
        host, port = self._node.api_server
        return {
            **self._node.settings.environment,
            "HOSTNAME": pod.hostname,
            "POD_IP": self._address,
            # Pods share the machine's addresses here; who would listen on all takes others' ports.
            "ELASTI_LISTEN_ADDRESS": self._address,
            "KUBERNETES_SERVICE_HOST": host,
            "KUBERNETES_SERVICE_PORT": str(port),
            "KUBERNETES_SERVICE_PORT_HTTPS": str(port),
        }

    def _facts(self) -> PodFacts:
        host = self._node.settings.node_address
        return PodFacts(self._pod(), self._address, host, self._node.capacity)
