from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from elasti.operator.watch.public_slices import PublicSlices
from kubeloop.client.client import Client
from kubeloop.objects.core import EndpointSlice
from kubeloop.objects.meta import ObjectMeta

pytestmark = pytest.mark.virtual_time


class Slices:
    """One slice in each namespace; the list of `stuck` does not end."""

    def __init__(self) -> None:
        self.lists: list[str] = []

    def resource(self, *_: Any) -> Slices:
        return self

    async def items(self, *, selector: str, namespace: str) -> AsyncIterator[EndpointSlice]:
        self.lists.append(namespace)
        await asyncio.sleep(3600 if namespace == "stuck" else 0.1)
        labels = {"kubernetes.io/service-name": "web"}
        yield EndpointSlice(metadata=ObjectMeta(namespace=namespace, labels=labels))


async def test_a_namespace_that_does_not_answer_delays_no_other():
    server = Slices()
    slices = PublicSlices(cast("Client", server), period=30.0)
    names = ["stuck", *(f"team-{number}" for number in range(50))]
    began = asyncio.get_running_loop().time()
    await slices.refresh(names)
    assert asyncio.get_running_loop().time() - began <= 5.0
    assert all(slices.of(name, "web") for name in names[1:])
    await slices.refresh(names)
    assert server.lists[51:] == ["stuck"], "what is known is not read again"
