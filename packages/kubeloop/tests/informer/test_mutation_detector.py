"""The mutation detector."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from tests.informer.support import Recorder, make_informer, now, settle

from kubeloop.informer import CacheMutated, MutationDetector
from kubeloop.objects.meta import STRUCT_ACCESS, LabeledMeta
from kubeloop.testing.fake_source import FakeSource

pytestmark = pytest.mark.virtual_time


class Pod(msgspec.Struct):
    metadata: LabeledMeta


def struct_source() -> FakeSource[Any]:
    decode = msgspec.json.Decoder(Pod).decode
    return FakeSource(represent=lambda obj: decode(msgspec.json.encode(obj)), access=STRUCT_ACCESS)


@pytest.mark.spec("S3")
@pytest.mark.parametrize("late", [False, True])
async def test_handler_that_changes_object_makes_informer_fail_within_second(late):
    source = FakeSource[Any]()
    source.create("a")
    informer = make_informer(source, mutation_detector=MutationDetector())

    async def vandal(obj):
        await asyncio.sleep(50.25 if late else 0)
        obj["metadata"]["labels"] = {"mine": "now"}

    informer.add_handler(on_add=vandal)
    with pytest.raises(CacheMutated, match=r"default/a was changed in the store"):
        await informer.run()
    assert now() == (51 if late else 1)
    assert informer.state.value == "stopped"


@pytest.mark.spec("S3")
async def test_structs_are_watched_too_and_updates_as_well():
    source = struct_source()
    source.create("a", labels={"app": "web"})
    informer = make_informer(source, mutation_detector=MutationDetector())

    def vandal(_old, new):
        new.metadata.labels["app"] = "stolen"

    informer.add_handler(on_update=vandal)
    asyncio.get_running_loop().call_later(0.5, lambda: source.update("a", n=1))
    with pytest.raises(CacheMutated):
        await informer.run()
    assert now() == 1


@pytest.mark.spec("S3")
async def test_the_final_check_finds_a_change_before_the_stop():
    source = FakeSource[Any]()
    source.create("a")
    informer = make_informer(source, mutation_detector=MutationDetector(period=1e6))
    informer.add_handler(on_add=lambda obj: obj.clear())
    with pytest.raises(CacheMutated):
        async with informer.running():
            await settle()


@pytest.mark.spec("S3")
async def test_unmodified_objects_are_forgotten_after_two_minutes():
    source = FakeSource[Any]()
    source.create("a")
    detector = MutationDetector()
    informer = make_informer(source, mutation_detector=detector, resync=10.0)
    recorder = Recorder()
    informer.add_handler(on_event=recorder)
    async with informer.running():
        await asyncio.sleep(60)
        source.update("a", n=1)
        await settle()
        assert len(detector) == 2, "resyncs bring no new objects"
        await asyncio.sleep(65)
        assert len(detector) == 1
        await asyncio.sleep(60)
        assert len(detector) == 0
        assert now() < 200
    assert len(recorder.notes) > 10
