"""Reports a pod's status and events to the API server.

The newest status wins, and it is tried until the server has it. Only what differs from what the server is
known to have is sent. The pod's uid goes along, so that a pod of the same name that came later is never
touched. A condition of ours that another client changed is written again: a controller that takes a node
for lost marks its pods not ready, and only the node itself can take that back.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import msgspec

from devkube.kubelet.pod_types import KubeletPod, KubeletPodStatus
from kubeloop.aio.backoff import Backoff
from kubeloop.client.errors import ApiError, Conflict, Invalid, KubeError, NotFound
from kubeloop.client.request import Preconditions
from kubeloop.client.resource import Resource
from kubeloop.controller.events.recorder import EventRecorder
from kubeloop.objects.core import PodCondition
from kubeloop.objects.patches import StrategicMergePatch

_log = logging.getLogger(__name__)


class StatusWriter:
    """The one writer of one pod's status; `run` is its task."""

    def __init__(self, pods: Resource[KubeletPod], pod: KubeletPod, *, retry: Backoff) -> None:
        self._pods = pods
        self._status = pods.subresource("status", KubeletPod)
        self._meta = pod.metadata
        self._retry = retry
        self._written = pod.status
        self.wanted = pod.status
        self._changed = asyncio.Event()
        self._settled = asyncio.Event()
        self._settled.set()
        self.is_gone = False
        """The server reports that the pod does not exist."""

    def set(self, status: KubeletPodStatus) -> None:
        """Want a status; returns at once."""
        if status == self.wanted:
            return
        self.wanted = status
        self._settled.clear()
        self._changed.set()

    def heard(self, status: KubeletPodStatus) -> None:
        """Note the server's copy. An old version may come late; it costs a patch without effect."""
        if self.wanted != self._written:
            return
        if all(_holds(status, condition) for condition in self._written.conditions):
            return
        self._written = msgspec.structs.replace(self._written, conditions=status.conditions)
        self._settled.clear()
        self._changed.set()

    async def settled(self) -> None:
        """Wait until the newest status is written, or the pod is gone."""
        await self._settled.wait()

    async def run(self) -> None:
        """Write until cancelled."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            await self._write()
            if not self._changed.is_set():
                self._settled.set()

    async def remove(self) -> None:
        """Take the pod's object away for good. Tried until the server has answered."""
        delays = self._retry.start()
        while not self.is_gone:
            try:
                await self._pods.delete(
                    self._meta.name,
                    namespace=self._meta.namespace,
                    grace_period=0,
                    preconditions=Preconditions(uid=self._meta.uid),
                )
            except (NotFound, Conflict):
                self.is_gone = True
            except KubeError as error:
                _log.info("pod %s is not removed yet: %s", self._meta.name, error)
                await asyncio.sleep(delays.next_delay())
            else:
                return

    async def _write(self) -> None:
        delays = self._retry.start()
        while not self.is_gone and self.wanted != self._written:
            wanted = self.wanted
            try:
                await self._send(wanted)
            except NotFound:
                self.is_gone = True
            except Conflict:
                # Another pod has the name now; or many wrote at once, and it is worth another try.
                self.is_gone = await self._is_another()
            except Invalid as error:
                _log.error("the status of pod %s is refused: %s", self._meta.name, error)
                return
            except KubeError as error:
                level = logging.WARNING if isinstance(error, ApiError) else logging.INFO
                _log.log(level, "the status of pod %s is not written: %s", self._meta.name, error)
                await asyncio.sleep(delays.next_delay())
            else:
                self._written = wanted

    async def _is_another(self) -> bool:
        """Whether the name belongs to another pod; False if the server does not answer now."""
        try:
            found = await self._pods.get(self._meta.name, namespace=self._meta.namespace)
        except NotFound:
            return True
        except KubeError:
            return False
        return found.uid != self._meta.uid

    async def _send(self, wanted: KubeletPodStatus) -> None:
        patch = {
            "metadata": {"uid": self._meta.uid},
            "status": status_difference(self._written, wanted),
        }
        await self._status.patch(
            self._meta.name, StrategicMergePatch(patch), namespace=self._meta.namespace
        )


def _holds(status: KubeletPodStatus, condition: PodCondition) -> bool:
    found = status.condition(condition.type)
    return found is not None and found.status == condition.status


def status_difference(old: KubeletPodStatus, new: KubeletPodStatus) -> dict[str, Any]:
    """Return the fields of a strategic merge patch that makes `new` of `old`.

    Conditions are merged by type, so that those of others stay.
    """
    before: dict[str, Any] = msgspec.to_builtins(old)
    after: dict[str, Any] = msgspec.to_builtins(new)
    patch: dict[str, Any] = {name: None for name in before if name not in after}
    patch |= {name: value for name, value in after.items() if before.get(name) != value}
    if before.get("podIPs") and patch.get("podIPs"):
        # A list that is merged by key, unless a directive says otherwise.
        patch["podIPs"] = [{"$patch": "replace"}, *patch["podIPs"]]
    return patch


class PodEvents:
    """Records events about one pod."""

    def __init__(self, recorder: EventRecorder, pod: Callable[[], KubeletPod]) -> None:
        self._recorder = recorder
        self._pod = pod

    def normal(self, container: str, reason: str, message: str) -> None:
        """Record a normal event of a container, or of the pod if `container` is empty."""
        self._recorder.normal(self._pod().reference(container), reason, message)

    def warning(self, container: str, reason: str, message: str) -> None:
        """Record a warning about a container, or about the pod."""
        self._recorder.warning(self._pod().reference(container), reason, message)
