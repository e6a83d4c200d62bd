"""The page of what was run shows the committed report and nothing else, and the report is of what is pinned."""

from __future__ import annotations

import re

import pytest

from tests.docs.pages import ROOT
from tests.neighbours import rows

PAGE = rows.PAGE.read_text()


def test_the_table_is_that_of_the_committed_report():
    assert rows.page(PAGE, rows.read()) == PAGE, "run: python -m tests.neighbours.rows"


def test_every_row_is_of_the_pinned_version_and_of_all_that_is_pinned():
    shown = {row.neighbour: row.version for row in rows.read()}
    assert shown == {name: rows.pinned(name) for name in rows.PINS}, (
        "run make neighbours-test, then: python -m tests.neighbours.rows"
    )


def test_a_neighbour_that_a_run_left_out_keeps_its_row():
    argo, envoy = (
        rows.Row(neighbour=name, version="1", date="2026-01-01", cluster="c") for name in "ae"
    )
    newer = rows.Row(neighbour="e", version="2", date="2026-02-02", cluster="c")
    assert rows.merged([argo, envoy], [newer]) == [argo, newer]


@pytest.mark.parametrize(
    ("page", "neighbour"),
    [
        ("argo-cd", "Argo CD's diff engine"),
        ("argo-rollouts", "Argo Rollouts"),
        ("flux", "Flux's diff engine"),
    ],
)
def test_a_guide_names_the_version_that_is_pinned(page: str, neighbour: str):
    assert rows.pinned(neighbour) in (ROOT / "docs" / "howto" / f"{page}.md").read_text()


def test_a_row_has_a_scenario_and_the_requests_that_it_counts():
    for row in rows.read():
        assert row.scenarios
        assert all(scenario.lost <= scenario.requests for scenario in row.scenarios)


def cells(part: str) -> list[list[str]]:
    """The rows of a part's table, without its head."""
    lines = [line for line in part.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_figures_from_real_nodes_are_those_of_their_report():
    report = (ROOT / "docs" / "zero-loss.md").read_text().split("## On real nodes")[1]
    found = cells(PAGE.split("## Programs of others, on real nodes")[1].split("\n## ")[0])
    assert len(found) > 5
    for program, version, _, requests, lost in found:
        assert version in report or version == "not recorded", program
        assert requests.replace(" ", "") in report.replace(" ", ""), program
        assert lost in ("", "0")


def test_what_was_not_run_is_not_among_what_was():
    before, _, missing = PAGE.partition("## Not run")
    names = {re.split("[,:]", row[0])[0] for row in cells(missing)}
    assert {"KEDA's metrics server", "Istio", "AWS load balancers", "GKE", "kube-router"} <= names
    shown = {row[0] for part in before.split("\n## ") for row in cells(part)}
    assert shown
    assert not {name for name in names if any(name in one for one in shown)}
