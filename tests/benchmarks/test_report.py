from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from benchmarks.report import (
    Figure,
    Report,
    at_least,
    at_most,
    times_at_least,
    times_at_most,
)

if TYPE_CHECKING:
    from pathlib import Path


def test_a_figure_is_the_median_of_its_samples() -> None:
    figure = Figure("rate", [10.0, 50.0, 20.0], "events/s", reference=5.0)

    assert figure.value == 20.0
    assert figure.ratio == 4.0
    assert figure.ok is None


@pytest.mark.parametrize(
    ("goal", "ok"),
    [
        (at_least(20), True),
        (at_least(21), False),
        (at_most(20), True),
        (at_most(19), False),
        (times_at_least(4), True),
        (times_at_least(5), False),
        (times_at_most(4), True),
        (times_at_most(3), False),
    ],
)
def test_goals_bound_the_value_or_its_ratio(goal, ok: bool) -> None:
    assert Figure("x", [20.0], "s", reference=5.0, goal=goal).ok is ok


def test_a_ratio_without_reference_is_missed() -> None:
    assert Figure("x", [20.0], "s", goal=times_at_least(25)).ok is False


def test_records_have_exactly_the_promised_fields(tmp_path: Path) -> None:
    report = Report([Figure("x", [20.0, 30.0, 40.0], "s", reference=10.0, goal=times_at_least(2))])

    report.write(tmp_path / "build" / "bench.json")

    [record] = json.loads((tmp_path / "build" / "bench.json").read_text())
    assert record == {
        "name": "x",
        "value": 30.0,
        "unit": "s",
        "reference": 10.0,
        "ratio": 3.0,
        "goal": ">= 2x",
        "ok": True,
    }


def test_a_run_of_some_suites_keeps_the_figures_of_the_others(tmp_path: Path) -> None:
    path = tmp_path / "bench.json"
    Report([Figure("a", [1.0], "s"), Figure("b", [2.0], "s")]).write(path)
    Report([Figure("b", [3.0], "s"), Figure("c", [4.0], "s")]).write(path)

    records = json.loads(path.read_text())

    assert [(record["name"], record["value"]) for record in records] == [
        ("a", 1.0),
        ("b", 3.0),
        ("c", 4.0),
    ]


def test_the_table_shows_spread_and_verdict() -> None:
    figure = Figure("watch", [41_000.0, 39_000.0], "events/s", goal=at_least(50_000))

    table = Report([figure]).table()

    assert "40,000 [39,000-41,000] events/s" in table
    assert "MISSED" in table
