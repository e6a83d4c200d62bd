"""CPU that metrics-server has of a target's pods."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from elasti.api.triggers.cluster import CpuMetadata
from elasti.api.triggers.registry import Role, read_metadata
from elasti.api.types import ScaleTrigger
from elasti.triggers.cpu import CpuReader, PodMetrics, millicores
from elasti.triggers.reader import ReadContext, ScrapeTarget
from kubeloop.testing.fake_errors import api_error

READ = CpuMetadata(threshold=50)


class Metrics:
    """The API server, as the reader sees it."""

    def __init__(self, *answers: PodMetrics | Exception) -> None:
        self.answers = answers
        self.lists = 0

    def resource(self, _resource: str, _kind: Any) -> Metrics:
        return self

    async def items(self, *, namespace: str) -> AsyncIterator[PodMetrics]:
        assert namespace == "shop"
        self.lists += 1
        for answer in self.answers:
            if isinstance(answer, Exception):
                raise answer
            yield answer


def used(name: str, *amounts: str) -> PodMetrics:
    containers = [{"name": "c", "usage": {"cpu": amount, "memory": "1Ki"}} for amount in amounts]
    return msgspec.convert({"metadata": {"name": name}, "containers": containers}, PodMetrics)


def asked(*pods: str, asleep: bool = False) -> ReadContext:
    found = [ScrapeTarget(name, "10.0.0.1", (), name) for name in pods]
    return ReadContext(key="k", cooldown=60, namespace="shop", pods=lambda: found, asleep=asleep)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("12345678n", 12.345678), ("500u", 0.5), ("7m", 7), ("2", 2000), ("0", 0)],
)
def test_amounts_of_cpu(text, expected):
    assert millicores(text) == pytest.approx(expected)


async def test_the_pods_of_a_namespace_are_listed_once_a_round():
    api = Metrics(used("a", "20m", "5m"), used("b", "40m"), used("c", "1"))
    reader = CpuReader(api)  # type: ignore[arg-type]
    one, two = await asyncio.gather(
        reader.read(READ, asked("a", "b")), reader.read(READ, asked("c"))
    )
    assert (one.value, two.value, api.lists) == (65, 1000, 1)
    await reader.end_round()
    assert (await reader.read(READ, asked("gone"))).pending
    assert api.lists == 2
    assert (await reader.read(READ, asked())).pending
    assert (await reader.read(READ, asked(asleep=True))).value == 0
    await reader.close()


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (api_error(404), "install metrics-server"),
        (api_error(503), "check metrics-server's pods"),
        (api_error(403), "elasti install grants it"),
        (api_error(500), "(InternalError)"),
        (used("a", "lots"), "(ValueError)"),
    ],
)
async def test_what_is_wrong_is_named_with_the_cure(answer, words):
    reader = CpuReader(Metrics(answer))  # type: ignore[arg-type]
    found = await reader.read(READ, asked("a"))
    assert not found.usable
    assert not found.pending
    assert words in found.error


def test_it_is_a_veto_that_needs_a_threshold():
    assert ScaleTrigger("cpu").effective_role is Role.VETO
    assert ScaleTrigger("cpu", role=Role.SIGNAL).effective_role is Role.SIGNAL
    with pytest.raises(ValueError, match="threshold is required; add it"):
        read_metadata("cpu", {})
