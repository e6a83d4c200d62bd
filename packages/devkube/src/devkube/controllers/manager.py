"""All controllers as one thing to run.

    controllers = ControllerManager(client)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(controllers.run())
        ...
        controllers.pause("deployment")

They share one set of informers. `run` goes on until it is cancelled and leaves nothing behind. A
paused controller keeps what it is asked for and does it when resumed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection

from devkube.controllers import (
    deployment,
    endpoint_slice,
    garbage_collector,
    namespace,
    node_lifecycle,
    replica_set,
    scheduler,
    stateful_set,
)
from devkube.controllers.context import ControllerSpec, SharedInformers
from kubeloop.aio.clock import Clock
from kubeloop.client.client import Client

_MAKERS = (
    deployment.make,
    replica_set.make,
    endpoint_slice.make,
    scheduler.make,
    garbage_collector.make,
    stateful_set.make,
    namespace.make,
    namespace.make_accounts,
)


class ControllerManager:
    """The controller manager of a dev cluster.

    `root_ca` is the server's certificate authority (PEM), to be published in every namespace; without
    it nothing is. `node_grace` is how many seconds a node may be silent before it counts as lost.
    `without` names controllers that are left out: the garbage collector alone watches every kind.
    """

    def __init__(
        self,
        client: Client,
        *,
        clock: Clock | None = None,
        root_ca: bytes | None = None,
        node_grace: float = node_lifecycle.GRACE_SECONDS,
        without: Collection[str] = (),
    ) -> None:
        self._shared = SharedInformers(client, clock=clock)
        makers: list[Callable[[SharedInformers], ControllerSpec]] = [
            *_MAKERS,
            lambda shared: node_lifecycle.make(shared, grace=node_grace),
        ]
        if root_ca is not None:
            makers.append(lambda shared: namespace.make_certificates(shared, root_ca.decode()))
        made = [make(self._shared) for make in makers]
        self._parts: dict[str, ControllerSpec] = {
            part.name: part for part in made if part.name not in without
        }
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
                    for component, recorder in self._shared.recorders.items():
                        group.create_task(recorder.run(), name=f"events of {component}")
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
