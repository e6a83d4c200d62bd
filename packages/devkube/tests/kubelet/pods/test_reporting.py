from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from tests.kubelet.builders import pod

from devkube.kubelet.pod_types import KubeletPod, KubeletPodStatus
from devkube.kubelet.pods.reporting import StatusWriter
from kubeloop.aio.backoff import Backoff
from kubeloop.aio.tasks import finish
from kubeloop.client.errors import Conflict, NotFound, ServiceUnavailable, Status
from kubeloop.objects.core import PodCondition
from kubeloop.objects.patches import Patch

pytestmark = pytest.mark.virtual_time


class Server:
    """The pods of a server that answers as it is told."""

    def __init__(self) -> None:
        self.uid = "u1"
        self.trouble: list[Exception] = []
        self.patches: list[Any] = []
        self.deletions = 0
        self.delay = 0.0

    def subresource(self, name: str, kind: type[Any]) -> Server:
        return self

    async def patch(self, name: str, patch: Patch, *, namespace: str) -> None:
        await asyncio.sleep(self.delay)
        if self.trouble:
            raise self.trouble.pop(0)
        self.patches.append(patch.content)  # type: ignore[union-attr]

    async def get(self, name: str, *, namespace: str) -> KubeletPod:
        return pod(metadata={"uid": self.uid})

    async def delete(self, name: str, **options: Any) -> None:
        if self.trouble:
            raise self.trouble.pop(0)
        self.deletions += 1


@contextlib.asynccontextmanager
async def writing(server: Server) -> AsyncIterator[StatusWriter]:
    retry = Backoff(duration=1.0, factor=2.0, cap=8.0)
    writer = StatusWriter(server, pod(), retry=retry)  # type: ignore[arg-type]
    task = asyncio.create_task(writer.run())
    try:
        yield writer
    finally:
        await finish([task])


def refusal(kind: Callable[[Status], Exception]) -> Exception:
    return kind(Status(status="Failure", message="no"))


def phases(server: Server) -> list[str]:
    return [patch["status"]["phase"] for patch in server.patches]


async def test_only_the_newest_of_what_waits_is_written():
    server = Server()
    server.delay = 5
    async with writing(server) as writer:
        writer.set(KubeletPodStatus(phase="A"))
        await asyncio.sleep(1)
        writer.set(KubeletPodStatus(phase="B"))
        writer.set(KubeletPodStatus(phase="C"))
        await writer.settled()
    assert phases(server) == ["A", "C"]
    assert server.patches[0]["metadata"] == {"uid": "u1"}


async def test_it_is_tried_until_the_server_has_it():
    server = Server()
    server.trouble = [refusal(ServiceUnavailable) for _ in range(3)]
    async with writing(server) as writer:
        began = asyncio.get_running_loop().time()
        writer.set(KubeletPodStatus(phase="A"))
        await writer.settled()
        assert asyncio.get_running_loop().time() - began == 7
    assert phases(server) == ["A"]


async def test_nothing_is_written_twice():
    server = Server()
    async with writing(server) as writer:
        for _ in range(2):
            writer.set(KubeletPodStatus(phase="A"))
            await writer.settled()
    assert phases(server) == ["A"]


async def test_what_others_write_over_our_conditions_is_written_again():
    server = Server()
    ready = PodCondition("Ready", "True")
    async with writing(server) as writer:
        writer.set(KubeletPodStatus(phase="A", conditions=(ready,)))
        writer.heard(KubeletPodStatus())  # from before it was written
        await writer.settled()
        foreign = PodCondition("Gate", "False")
        writer.heard(KubeletPodStatus(phase="A", conditions=(ready, foreign)))
        await writer.settled()
        assert len(server.patches) == 1
        writer.heard(
            KubeletPodStatus(phase="A", conditions=(PodCondition("Ready", "False"), foreign))
        )
        await writer.settled()
    assert [patch["status"] for patch in server.patches[1:]] == [
        {"conditions": ({"type": "Ready", "status": "True"},)}
    ]


async def test_a_conflict_about_the_same_pod_is_tried_again():
    server = Server()
    server.trouble = [refusal(Conflict)]
    async with writing(server) as writer:
        writer.set(KubeletPodStatus(phase="A"))
        await writer.settled()
        assert not writer.is_gone
    assert phases(server) == ["A"]


@pytest.mark.parametrize("kind", [Conflict, NotFound])
async def test_a_pod_that_is_gone_or_another_is_left_alone(kind):
    server = Server()
    server.uid = "another"
    server.trouble = [refusal(kind)]
    async with writing(server) as writer:
        writer.set(KubeletPodStatus(phase="A"))
        await writer.settled()
        assert writer.is_gone
        await writer.remove()
    assert (server.patches, server.deletions) == ([], 0)


async def test_a_removal_is_tried_until_the_server_has_answered():
    server = Server()
    server.trouble = [refusal(ServiceUnavailable), refusal(ServiceUnavailable)]
    async with writing(server) as writer:
        await writer.remove()
    assert server.deletions == 1
