"""A reflector that is beyond help is replaced, and nobody who listens notices more than a new list."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

import pytest
from tests.informer.support import EXACT, settle

from kubeloop.informer.handlers import Added, Deleted, Updated
from kubeloop.informer.shared_informer import SharedInformer
from kubeloop.testing.fake_source import FakeSource

pytestmark = pytest.mark.virtual_time

SURVIVING = dataclasses.replace(EXACT, survive_defects=True)


def told(informer: SharedInformer[Any]) -> list[str]:
    """What a handler of the informer hears."""
    words: list[str] = []

    def on_event(event: object) -> None:
        match event:
            case Added(key=key):
                words.append(f"+{key}")
            case Updated(key=key):
                words.append(f"~{key}")
            case Deleted(key=key):
                words.append(f"-{key}")

    informer.add_handler(on_event=on_event)
    return words


async def test_a_new_reflector_catches_up_on_missed_changes():
    source: FakeSource[Any] = FakeSource()
    source.create("a")
    source.create("b")
    informer = SharedInformer(source, options=EXACT, notify_unchanged=False)
    words = told(informer)
    async with informer.running():
        await informer.wait_synced()
        await settle()
        words.clear()
        version = informer.last_version
        source.delete("a")
        source.create("c")
        informer.restart("a test says so")
        await asyncio.sleep(1)
        assert sorted(words) == ["+default/c", "-default/a"]
        assert source.lists[-1].resource_version >= version
        assert informer.restarts == 1
        assert len(source.open_streams) == 1
        source.create("d")
        await settle()
        assert words[-1] == "+default/d"


async def test_a_list_that_is_never_answered_is_given_up():
    source: FakeSource[Any] = FakeSource()
    source.create("a")
    source.stall_lists()
    informer = SharedInformer(source, options=EXACT)
    async with informer.running():
        await asyncio.sleep(1000)
        assert not informer.has_synced
        source.stall_lists(stall=False)
        source.stall_lists()
        informer.restart("silence")
        await settle()
        assert len(source.lists) == 2
        source.stall_lists(stall=False)
        await informer.wait_synced()
        assert informer.restarts == 1


async def test_one_that_rests_is_replaced_at_once():
    source: FakeSource[Any] = FakeSource()
    source.refuse_connections()
    informer = SharedInformer(source, options=EXACT)
    async with informer.running():
        await asyncio.sleep(201)  # it tries every half minute now, at 200.4 for the last time
        source.refuse_connections(refuse=False)
        await asyncio.sleep(20)
        assert not informer.has_synced
        informer.restart("no more rest")
        async with asyncio.timeout(0.5):
            await informer.wait_synced()
        assert informer.restarts == 1


async def test_defect_ends_informer_unless_it_is_to_be_survived():
    source: FakeSource[Any] = FakeSource()
    source.fail_lists(ZeroDivisionError("a defect"))
    informer = SharedInformer(source, options=EXACT)
    with pytest.raises(ZeroDivisionError):
        await informer.run()


async def test_a_defect_that_is_survived_costs_a_rest(caplog):
    source: FakeSource[Any] = FakeSource()
    source.create("a")
    source.fail_lists(ZeroDivisionError("a defect"), ZeroDivisionError("again"))
    informer = SharedInformer(source, options=SURVIVING)
    words = told(informer)
    async with informer.running():
        await informer.wait_synced()
        await settle()
        assert words == ["+default/a"]
        assert informer.restarts == 2
        assert [request.at for request in source.list_requests] == pytest.approx([0, 0.8, 2.4])
    assert "a defect" in caplog.text


async def test_many_wishes_at_once_are_one():
    source: FakeSource[Any] = FakeSource()
    informer = SharedInformer(source, options=EXACT)
    informer.restart("before the start, it means nothing")
    async with informer.running():
        await informer.wait_synced()
        for _ in range(10):
            informer.restart("again")
        await asyncio.sleep(5)
        assert informer.restarts == 1
        assert len(source.open_streams) == 1
    assert not source.open_streams
