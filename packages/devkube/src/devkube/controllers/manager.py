"""All controllers as one thing to run.

    controllers = Controllers(client)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(controllers.run())
        ...
        controllers.pause("deployment")

They share one set of informers. `run` goes on until it is cancelled and leaves nothing behind. A
paused controller keeps what it is asked for and does it when resumed.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from devkube.controllers import classic_endpoints as endpoints
from devkube.controllers import deployment as deployments
from devkube.controllers import disruption as budgets
from devkube.controllers import endpoint_slice as slices
from devkube.controllers import garbage_collector as garbage
from devkube.controllers import namespace, pod_gc, scheduler
from devkube.controllers import namespace as namespaces
from devkube.controllers import node_lifecycle as nodes
from devkube.controllers import replica_set as replicasets
from devkube.controllers import stateful_set as statefulsets
from devkube.controllers.context import SharedInformers

if TYPE_CHECKING:
    from collections.abc import Callable

    from devkube.controllers.context import ControllerSpec
    from kubeloop.aio.clock import Clock
    from kubeloop.client.client import Client

_MAKERS = (
    deployments.make,
    replicasets.make,
    slices.make,
    endpoints.make,
    scheduler.make,
    garbage.make,
    statefulsets.make,
    namespaces.make,
    namespace.make_accounts,
    budgets.make,
)


class ControllerManager:
    """The controller manager of a dev cluster.

    `root_ca` is the server's certificate authority (PEM), to be published in every namespace; without
    it nothing is. `node_grace` is how long a node may be silent before it counts as lost,
    `pod_quarantine` how long pods outlive their node; in seconds, as in Kubernetes.
    """

    def __init__(
        self,
        client: Client,
        *,
        clock: Clock | None = None,
        root_ca: bytes | None = None,
        node_grace: float = nodes.GRACE_SECONDS,
        pod_quarantine: float = pod_gc.QUARANTINE_SECONDS,
    ) -> None:
        self._shared = SharedInformers(client, clock=clock)
        makers: list[Callable[[SharedInformers], ControllerSpec]] = [
            *_MAKERS,
            lambda shared: nodes.make(shared, grace=node_grace),
            lambda shared: pod_gc.make(shared, quarantine=pod_quarantine),
        ]
        if root_ca is not None:
            makers.append(lambda shared: namespace.make_certificates(shared, root_ca.decode()))
        made = [make(self._shared) for make in makers]
        self._parts: dict[str, ControllerSpec] = {part.name: part for part in made}
        self._synced = asyncio.Event()

    @property
    def names(self) -> tuple[str, ...]:
        """The controllers' names, for `pause` and `resume`."""
        return tuple(self._parts)

    def pause(self, name: str) -> None:
        """Let one controller stand still. Raises KeyError that lists the names."""
        self._part(name).pause()

    def resume(self, name: str) -> None:
        """Let it go on. Raises KeyError that lists the names."""
        self._part(name).resume()

    def is_paused(self, name: str) -> bool:
        """Whether it stands still."""
        return self._part(name).gate.is_paused

    async def wait_synced(self) -> None:
        """Wait until every controller has seen what there is."""
        await self._synced.wait()

    async def run(self) -> None:
        """Run until cancelled."""
        try:
            async with self._shared.factory.running():
                await self._shared.factory.wait_for_sync()
                async with asyncio.TaskGroup() as group:
                    group.create_task(self._shared.recorder.run(), name="events")
                    for part in self._parts.values():
                        group.create_task(part.controller.run(), name=part.name)
                        if part.background is not None:
                            group.create_task(part.background(), name=f"{part.name} watch")
                    for part in self._parts.values():
                        await part.controller.warm_up()
                    self._synced.set()
        finally:
            for part in self._parts.values():
                await part.controller.close()

    def _part(self, name: str) -> ControllerSpec:
        try:
            return self._parts[name]
        except KeyError:
            known = ", ".join(self._parts)
            raise KeyError(f"no controller {name!r}; there are: {known}") from None
