from __future__ import annotations

import asyncio

import pytest

from kubeloop.informer import Added, Deleted, SharedInformer, Updated
from kubeloop.testing.fake_source import FakeSource

pytestmark = pytest.mark.virtual_time


async def test_an_informer_mirrors_the_server_and_tells_its_handlers():
    source = FakeSource()
    source.create("a")
    informer = SharedInformer(source, name="pods")
    seen = []
    informer.add_handler(on_event=seen.append)
    async with informer.running():
        assert await informer.wait_synced()
        source.create("b")
        source.update("a", spec=1)
        source.delete("a")
        await asyncio.sleep(1)
        assert informer.store.keys() == ["default/b"]
    assert [(type(note), note.key) for note in seen] == [
        (Added, "default/a"),
        (Added, "default/b"),
        (Updated, "default/a"),
        (Deleted, "default/a"),
    ]
