from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubeloop.controller.queue.workqueue import KeyedHeap

changes = st.lists(
    st.tuples(st.sampled_from("abcdefgh"), st.none() | st.integers(-3, 3)), max_size=300
)


@given(changes)
def test_keys_leave_by_rank_then_insertion_order(steps):
    heap: KeyedHeap[str] = KeyedHeap()
    model: dict[str, tuple[int, int]] = {}
    for number, (key, rank) in enumerate(steps):
        if rank is None:
            heap.discard(key)
            model.pop(key, None)
        else:
            heap.put(key, rank)
            model[key] = (rank, number)
    assert len(heap) == len(model)
    expected = sorted(model, key=lambda key: model[key])
    assert heap.first_rank() == (model[expected[0]][0] if expected else None)
    assert [heap.pop()[0] for _ in expected] == expected


def test_memory_follows_the_live_keys_however_often_ranks_change():
    heap: KeyedHeap[str] = KeyedHeap()
    for rank in range(10_000):
        heap.put("a", rank)
    assert len(heap._heap) < 100
    assert heap.pop() == ("a", 9_999)


def test_an_empty_heap_has_nothing_to_pop():
    heap: KeyedHeap[str] = KeyedHeap()
    assert heap.first_rank() is None
    assert heap.rank("a") is None
    assert "a" not in heap
    with pytest.raises(IndexError):
        heap.pop()
