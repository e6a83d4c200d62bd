"""Behaviours: what a test of this suite says about every Kubernetes API server, by name.

    @behaviour("list.remaining", "A page tells how many objects follow it")
    async def test_...(kube): ...

The id is `area.name` and unique; `hack/conformance_table.py` makes a row of it. A test runs once for
each server (and each parameter), and a behaviour holds for a server where all those runs pass.

Where the dev cluster is known to do something else, `devcluster=` says what and why, and the test
asserts that too (`kube.is_dev`): a difference is written down and held to, never skipped.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import pytest

MARKER = "behaviour"
_ID = re.compile(r"[a-z]+(-[a-z]+)*\.[a-z0-9]+(-[a-z0-9]+)*\Z")


@dataclass(frozen=True, slots=True)
class Behaviour:
    """One row of the table."""

    id: str
    sentence: str
    devcluster: str = ""


def behaviour(id: str, sentence: str, *, devcluster: str = "") -> pytest.MarkDecorator:
    """Name what a test proves, and how the dev cluster differs, if it does."""
    if not _ID.match(id):
        raise ValueError(f"behaviour {id!r} is not of the form area.short-name")
    return pytest.mark.behaviour(Behaviour(id, sentence, devcluster))


def behaviour_of(item: pytest.Item) -> Behaviour | None:
    """Return what a test proves, None where it does not say."""
    marker = item.get_closest_marker(MARKER)
    return marker.args[0] if marker is not None else None
