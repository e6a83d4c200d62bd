"""The Node object and its lease: created, renewed, and created again after a deletion."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
import platform
from typing import TYPE_CHECKING

from kubeloop.client.errors import AlreadyExists, KubeError, NotFound
from kubeloop.objects.patches import StrategicMergePatch
from kubeloop.objects.times import format_micro_time, format_time

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Awaitable, Callable, Mapping

    from devkube.kubelet.kubelet import KubeletSettings
    from kubeloop.aio.clock import Clock
    from kubeloop.client.client import Client
    from kubeloop.objects.meta import JsonObject


LEASE_NAMESPACE = "kube-node-lease"
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_PRESSURES = (
    ("MemoryPressure", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
    ("DiskPressure", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
    ("PIDPressure", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
)
_log = logging.getLogger(__name__)
_PATIENCE = 10.0
_LEASE_SECONDS = 40


def machine_capacity(settings: KubeletSettings) -> dict[str, str]:
    """Return what the machine has, and the number of pods that the settings allow."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cpu": str(os.cpu_count() or 1),
        "memory": f"{memory // 1024}Ki",
        "ephemeral-storage": "100Gi",
        "pods": str(settings.max_pods),
    }


def node_object(name: str) -> JsonObject:
    """Return the node to create, without a status."""
    system, machine = platform.system().lower(), architecture()
    labels = {
        "kubernetes.io/hostname": name,
        "kubernetes.io/os": system,
        "kubernetes.io/arch": machine,
    }
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}}


def node_status(
    name: str,
    settings: KubeletSettings,
    capacity: Mapping[str, str],
    *,
    known: JsonObject,
    now: dt.datetime,
) -> JsonObject:
    """Return the node's status; `known` is the one before, whose transition times go on."""
    conditions = [
        _condition(kind, "False", reason, message, known=known, now=now)
        for kind, reason, message in _PRESSURES
    ]
    ready = "kubelet is posting ready status"
    conditions.append(_condition("Ready", "True", "KubeletReady", ready, known=known, now=now))
    return {
        "capacity": dict(capacity),
        "allocatable": dict(capacity),
        "conditions": conditions,
        "addresses": [
            {"type": "InternalIP", "address": settings.node_address},
            {"type": "Hostname", "address": name},
        ],
        "nodeInfo": _information(settings),
    }


def lease_object(name: str, *, node_uid: str, now: dt.datetime) -> JsonObject:
    """Return the lease that says that the node lives."""
    owner = {"apiVersion": "v1", "kind": "Node", "name": name, "uid": node_uid}
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": name, "namespace": LEASE_NAMESPACE, "ownerReferences": [owner]},
        "spec": {
            "holderIdentity": name,
            "leaseDurationSeconds": _LEASE_SECONDS,
            "renewTime": format_micro_time(now),
        },
    }


def architecture() -> str:
    """Return the machine's architecture by Kubernetes' name for it."""
    return _ARCHITECTURES.get(platform.machine(), platform.machine())


def _condition(
    kind: str, status: str, reason: str, message: str, *, known: JsonObject, now: dt.datetime
) -> JsonObject:
    stamp = format_time(now)
    times = {
        (item.get("type"), item.get("status")): item.get("lastTransitionTime", stamp)
        for item in known.get("conditions") or ()
    }
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": message,
        "lastHeartbeatTime": stamp,
        "lastTransitionTime": times.get((kind, status), stamp),
    }


def _information(settings: KubeletSettings) -> JsonObject:
    return {
        "machineID": "",
        "systemUUID": "",
        "bootID": "",
        "kernelVersion": platform.release(),
        "osImage": platform.system(),
        "containerRuntimeVersion": "devkube://local-processes",
        "kubeletVersion": settings.version,
        "kubeProxyVersion": "",
        "operatingSystem": platform.system().lower(),
        "architecture": architecture(),
    }


@dataclasses.dataclass(eq=False)
class NodeAgent:
    """One node's object and lease; `run` is its task."""

    client: Client
    settings: KubeletSettings
    _: dataclasses.KW_ONLY
    name: str
    capacity: Mapping[str, str]
    clock: Clock

    def __post_init__(self) -> None:
        self._node: JsonObject = {}
        self._nodes = self.client.resource("v1/nodes")
        self._leases = self.client.resource("coordination.k8s.io/v1/leases")

    async def register(self) -> None:
        """Make the node known and ready; tried until the server has it."""
        await self._insist(self._post_status)
        await self._insist(self._renew)

    async def run(self) -> None:
        """Renew lease and status until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._every(self.settings.lease_renewed_every, self._renew))
            group.create_task(self._every(self.settings.status_every, self._post_status))

    async def _every(self, period: float, act: Callable[[], Awaitable[None]]) -> None:
        while True:
            await asyncio.sleep(period)
            await self._insist(act)

    async def _insist(self, act: Callable[[], Awaitable[None]]) -> None:
        delays = self.settings.retry.start()
        while True:
            try:
                await act()
            except KubeError as error:
                _log.info("node %s: %s", self.name, error)
                await asyncio.sleep(delays.next_delay())
            else:
                return

    async def _post_status(self) -> None:
        try:
            self._node = await self._nodes.get(self.name, timeout=_PATIENCE)
        except NotFound:
            self._node = await self._create()
        patch = StrategicMergePatch({"status": self._status(self._node)})
        self._node = await self._nodes.subresource("status").patch(
            self.name, patch, timeout=_PATIENCE
        )

    def _status(self, node: JsonObject) -> JsonObject:
        return node_status(
            self.name,
            self.settings,
            self.capacity,
            known=node.get("status") or {},
            now=self.clock.now(),
        )

    async def _create(self) -> JsonObject:
        # With its status at once, as kubelets do: no client ever sees a node without a condition.
        node = node_object(self.name)
        node["status"] = self._status(node)
        try:
            return await self._nodes.create(node, timeout=_PATIENCE)
        except AlreadyExists:
            return await self._nodes.get(self.name, timeout=_PATIENCE)

    async def _renew(self) -> None:
        uid = self._node["metadata"]["uid"]
        lease = lease_object(self.name, node_uid=uid, now=self.clock.now())
        await self._leases.apply(lease, field_manager="kubelet", force=True, timeout=_PATIENCE)
