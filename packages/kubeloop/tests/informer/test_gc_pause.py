from __future__ import annotations

import asyncio
import gc
import threading
import weakref

import pytest
from tests.informer.support import FakeControl

from kubeloop.informer.gc_pause import GcGuard, GcPauser


def make(*, enabled: bool = True) -> tuple[FakeControl, GcPauser]:
    control = FakeControl(enabled=enabled)
    return control, GcPauser(control)


def test_the_first_load_pauses_then_freezes_and_releases() -> None:
    control, collector = make()
    guard = GcGuard(collector=collector)

    with guard.loading() as load:
        assert control.enabled, "the server may still refuse, or hang"
        load.begin()
        load.begin()
        assert not control.enabled
    guard.release()

    assert control.calls == ["collect", "disable", "freeze", "enable", "unfreeze"]


def test_later_loads_pause_but_do_not_freeze_again() -> None:
    control, collector = make()
    guard = GcGuard(collector=collector)

    for _ in range(5):
        with guard.loading() as load:
            load.begin()
            assert not control.enabled
        assert control.enabled
    guard.release()
    guard.release()

    assert control.calls.count("freeze") == 1
    assert control.calls.count("collect") == 1
    assert control.calls.count("unfreeze") == 1


def test_overlapping_loads_share_one_pause_and_the_last_informer_thaws() -> None:
    control, collector = make()
    first, second = GcGuard(collector=collector), GcGuard(collector=collector)

    with first.loading() as load:
        load.begin()
        with second.loading() as another:
            another.begin()
        assert not control.enabled
    assert control.enabled
    first.release()
    assert "unfreeze" not in control.calls
    second.release()

    assert control.calls[-1] == "unfreeze"


def test_load_that_fails_gives_collector_back_and_freezes_nothing() -> None:
    control, collector = make()
    guard = GcGuard(collector=collector)

    def load_and_fail() -> None:
        with guard.loading() as load:
            load.begin()
            raise RuntimeError

    with pytest.raises(RuntimeError):
        load_and_fail()
    guard.release()

    assert control.enabled
    assert "freeze" not in control.calls
    assert "unfreeze" not in control.calls


def test_a_program_that_turned_the_collector_off_finds_it_off() -> None:
    control, collector = make(enabled=False)
    guard = GcGuard(collector=collector)

    with guard.loading() as load:
        load.begin()

    assert not control.enabled
    assert "collect" not in control.calls


def test_opting_out_touches_nothing() -> None:
    control, collector = make()
    guard = GcGuard(enabled=False, collector=collector)

    with guard.loading() as load:
        load.begin()
        assert control.enabled
    guard.release()

    assert control.calls == []


def test_threads_may_load_at_the_same_time() -> None:
    control, collector = make()

    def load() -> None:
        for _ in range(200):
            guard = GcGuard(collector=collector)
            with guard.loading() as load:
                load.begin()
            guard.release()

    threads = [threading.Thread(target=load) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert control.enabled
    assert control.calls.count("freeze") == 800
    assert collector._loads == collector._freezes == 0


class Node:
    def __init__(self) -> None:
        self.me = self


@pytest.fixture
def real_guard() -> GcGuard:
    assert gc.isenabled()
    # Python 3.12 starts with some objects frozen.
    gc.unfreeze()
    return GcGuard(collector=GcPauser(gc))


def test_garbage_made_after_the_freeze_is_still_collected(real_guard: GcGuard) -> None:
    with real_guard.loading() as load:
        load.begin()
        store = [{"a": [number]} for number in range(10_000)]
    try:
        garbage = weakref.ref(Node())
        # Enough new objects for the automatic collection to run on its own.
        kept = [[number] for number in range(5_000)]

        assert garbage() is None
        assert len(store) + len(kept) == 15_000
    finally:
        real_guard.release()
    assert gc.get_freeze_count() == 0


def test_what_was_hidden_by_freeze_is_collected_after_release(
    real_guard: GcGuard,
) -> None:
    old = Node()
    watched = weakref.ref(old)
    with real_guard.loading() as load:
        load.begin()
    del old
    gc.collect()
    assert watched() is not None

    real_guard.release()
    gc.collect()

    assert watched() is None


@pytest.mark.virtual_time
async def test_load_that_stalls_gives_collector_back_after_ten_seconds() -> None:
    control, collector = make()
    guard = GcGuard(collector=collector)

    with guard.loading() as load:
        await asyncio.sleep(60)
        load.begin()
        await asyncio.sleep(9.9)
        assert not control.enabled
        await asyncio.sleep(0.2)
        assert control.enabled
    assert control.calls == ["collect", "disable", "enable", "freeze"]
