"""The watch for Istio ambient, on a server."""

from __future__ import annotations

import asyncio
from unittest import mock

import pytest
from tests.operator.rig import Rig
from tests.operator.servers import everywhere

from elasti.operator.settings import OperatorSettings
from elasti.operator.watch import neighbours
from elasti.operator.watch.neighbours import Neighbours
from kubeloop.aio.tasks import finish
from kubeloop.objects.patches import MergePatch

pytestmark = [everywhere, pytest.mark.timeout(60)]


async def test_the_first_namespace_in_ambient_is_seen_at_once(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(neighbours, "_PERIOD", 0.1)
    changes: asyncio.Queue[frozenset[str]] = asyncio.Queue()
    known = Neighbours(rig.client, OperatorSettings(), changes.put_nowait)
    await known.look()
    look = mock.AsyncMock(side_effect=known.look)
    monkeypatch.setattr(known, "look", look)
    task = asyncio.create_task(known.run())
    await asyncio.sleep(1)
    assert changes.empty()
    look.assert_not_awaited()
    joined = MergePatch({"metadata": {"labels": {"istio.io/dataplane-mode": "ambient"}}})
    await rig.client.resource("v1/namespaces").patch(rig.namespace, joined)
    try:
        async with asyncio.timeout(5):
            assert await changes.get() == {rig.namespace}
    finally:
        await finish([task])
