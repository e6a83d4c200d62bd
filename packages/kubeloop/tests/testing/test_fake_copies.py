from __future__ import annotations

from typing import Any

from kubeloop.testing.fake_copies import copied


def test_a_copy_is_equal_and_shares_nothing_that_can_change():
    stored: dict[str, Any] = {
        "a": {"b": [1, {"c": None}]},
        "d": ["x", 1.5, True],
        "odd": ({"in": "a tuple"},),
    }
    made = copied(stored)
    assert made == stored
    made["a"]["b"][1]["c"] = 2
    made["d"].append("y")
    made["odd"][0]["in"] = "another"
    assert stored == {
        "a": {"b": [1, {"c": None}]},
        "d": ["x", 1.5, True],
        "odd": ({"in": "a tuple"},),
    }
