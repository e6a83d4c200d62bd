"""What differs between an object that is there and one that is to be; no cluster runs beside it.

The thread of one draws random numbers, which Hypothesis takes for the strategies' own.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from elasti.cli.install.apply import differences

VALUES = st.recursive(
    st.booleans() | st.integers(0, 3) | st.sampled_from("ab"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from(["spec", "data"]), VALUES), VALUES)
def test_equal_objects_differ_in_nothing_whatever_the_server_added(content, more):
    before = {"metadata": {"name": "a", "resourceVersion": "1"}, "status": more, **content}
    after = {"metadata": {"name": "a", "resourceVersion": "2"}, "status": None, **content}
    assert differences(before, after) == []


@given(VALUES, VALUES)
def test_different_objects_differ_in_something(before, after):
    found = differences({"metadata": {}, "spec": before}, {"metadata": {}, "spec": after})
    assert bool(found) == (before != after)
    assert all(str(item).startswith("spec") for item in found)


def test_an_item_that_comes_in_between_is_one_difference():
    before = {"env": [{"name": "A", "value": "1"}, {"name": "C", "value": "3"}]}
    after = {"env": [{"name": "A", "value": "1"}, {"name": "B"}, {"name": "C", "value": "3"}]}
    assert [item.path for item in differences(before, after)] == ["env[B]"]


def test_another_order_of_named_items_is_a_difference():
    before, after = ({"env": [{"name": name} for name in names]} for names in ("ABC", "CXA"))
    assert [str(item) for item in differences(before, after)] == [
        'env[B]: {"name":"B"} -> (none)',
        'env[X]: (none) -> {"name":"X"}',
        'env (order): ["A","C"] -> ["C","A"]',
    ]
