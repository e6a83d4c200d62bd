"""`elasti report`: what it says of plain values."""

from __future__ import annotations

import csv
import datetime as dt
import json

import pytest
from click.testing import CliRunner

from elasti.api.types import CapacityStatus
from elasti.api.usage import UsageRow
from elasti.cli.main import main
from elasti.cli.report import UsageReport

NOW = dt.datetime(2030, 1, 8, tzinfo=dt.UTC)
WEEK = dt.timedelta(days=7)


def row(name: str, *, counted: bool = True) -> UsageRow:
    return UsageRow(
        namespace="shop",
        name=name,
        since=NOW - WEEK,
        asleep_seconds=5 * 86400,
        wakes=9,
        counted=counted,
        cpu_core_hours=60.0 * counted,
        memory_gib_hours=120.0 * counted,
    )


def report(own: CapacityStatus | None = None) -> UsageReport:
    rows = [row("web"), row("bare", counted=False)]
    return UsageReport(rows=rows, unseen=1, own=own, now=NOW)


def test_the_table_says_what_is_counted_from_when_and_what_is_not():
    text = report(CapacityStatus(100, 2**29)).rendered("table")
    assert "shop        web    2030-01-01T00:00:00Z   71%      9       60.0          120.0" in text
    assert text.count("not counted") == 2 + 1
    assert "Released: 60.0 core hours, 120.0 GiB hours." in text
    # A tenth of a core and half a GiB, for 168 hours.
    assert "requested 16.8 core hours and 84.0 GiB hours" in text
    assert "43.2 and 36.0 are left" in text
    assert "no operator has counted them yet: 1." in text
    nothing = UsageReport(
        rows=[row("bare", counted=False)], unseen=0, own=CapacityStatus(), now=NOW
    )
    assert ": 0.0 and 0.0 are left" in nothing.rendered("table")
    assert "is not known here" in report().rendered("table")


def test_other_forms_have_the_same_figures():
    lines = list(csv.DictReader(report().rendered("csv").splitlines()))
    assert [line["core_hours"] for line in lines] == ["60.0", "not counted"]
    found = json.loads(report(CapacityStatus(1000, 0)).rendered("json"))
    assert found["services"][0]["since"] == "2030-01-01T00:00:00Z"
    assert (found["cpu_core_hours"], found["own_cpu_core_hours"]) == (60.0, 168.0)
    assert report().rendered("markdown").startswith("| NAMESPACE | NAME |")


@pytest.mark.parametrize("text", ["soon", "-1h", "0d", "99999999999d"])
def test_a_window_that_cannot_be_is_a_wrong_call(text):
    result = CliRunner().invoke(main, ["report", "--since", text])
    assert result.exit_code == 2
    assert "write 7d, 36h or 90m" in result.output
