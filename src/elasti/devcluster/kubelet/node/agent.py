"""Keeps the Node object and its lease: made, renewed, made again where somebody deleted them."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from elasti.devcluster.kubelet.node.objects import (
    LEASE_NAMESPACE,
    lease_object,
    node_object,
    node_status,
)
from kubeloop.client.errors import AlreadyExists, KubeError, NotFound
from kubeloop.objects.patches import MergePatch, StrategicMergePatch
from kubeloop.objects.times import format_micro_time

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from elasti.devcluster.kubelet.settings import KubeletSettings
    from kubeloop.aio.clock import Clock
    from kubeloop.client.client import Client
    from kubeloop.objects.meta import JsonObject

_log = logging.getLogger(__name__)
_PATIENCE = 10.0


class NodeAgent:
    """One node's object and lease; `run` is its task."""

    def __init__(
        self,
        client: Client,
        settings: KubeletSettings,
        *,
        name: str,
        capacity: Mapping[str, str],
        port: int,
        clock: Clock,
    ) -> None:
        self._nodes = client.resource("v1/nodes")
        self._leases = client.resource("coordination.k8s.io/v1/leases")
        self._settings = settings
        self._name = name
        self._capacity = capacity
        self._port = port
        self._clock = clock
        self._node: JsonObject = {}
        self._has_lease = False

    async def register(self) -> None:
        """Make the node known and ready; tried until the server has it."""
        await self._insist(self._post_status)
        await self._insist(self._renew)

    async def run(self) -> None:
        """Renew lease and status until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._every(self._settings.lease_renewed_every, self._renew))
            group.create_task(self._every(self._settings.status_every, self._post_status))

    async def _every(self, period: float, act: Callable[[], Awaitable[None]]) -> None:
        while True:
            await asyncio.sleep(period)
            await self._insist(act)

    async def _insist(self, act: Callable[[], Awaitable[None]]) -> None:
        delays = self._settings.retry.start()
        while True:
            try:
                await act()
            except KubeError as error:
                _log.info("node %s: %s", self._name, error)
                await asyncio.sleep(delays.next_delay())
            else:
                return

    async def _post_status(self) -> None:
        try:
            self._node = await self._nodes.get(self._name, timeout=_PATIENCE)
        except NotFound:
            self._node = await self._create()
        patch = StrategicMergePatch({"status": self._status(self._node)})
        self._node = await self._nodes.subresource("status").patch(
            self._name, patch, timeout=_PATIENCE
        )

    def _status(self, node: JsonObject) -> JsonObject:
        return node_status(
            self._name,
            self._settings,
            self._capacity,
            port=self._port,
            known=node.get("status") or {},
            now=self._clock.now(),
        )

    async def _create(self) -> JsonObject:
        # With its status at once, as kubelets do: nobody ever sees a node without a condition.
        node = node_object(self._name, self._settings)
        node["status"] = self._status(node)
        try:
            return await self._nodes.create(node, timeout=_PATIENCE)
        except AlreadyExists:
            return await self._nodes.get(self._name, timeout=_PATIENCE)

    async def _renew(self) -> None:
        if self._has_lease:
            stamp = format_micro_time(self._clock.now())
            patch = MergePatch({"spec": {"renewTime": stamp}})
            try:
                await self._leases.patch(
                    self._name, patch, namespace=LEASE_NAMESPACE, timeout=_PATIENCE
                )
            except NotFound:
                self._has_lease = False
            else:
                return
        await self._make_lease()

    async def _make_lease(self) -> None:
        lease = lease_object(
            self._name,
            self._settings,
            node_uid=self._node["metadata"]["uid"],
            now=self._clock.now(),
        )
        try:
            await self._leases.create(lease, timeout=_PATIENCE)
        except AlreadyExists:
            patch = MergePatch({"spec": lease["spec"]})
            await self._leases.patch(
                self._name, patch, namespace=LEASE_NAMESPACE, timeout=_PATIENCE
            )
        self._has_lease = True
