"""The page of what was ever lost names the cases that can be replayed, with the same fixes."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

_ROOT = Path(__file__).parents[2]


def test_each_case_stands_in_the_table_with_its_fix():
    cases = runpy.run_path(str(_ROOT / "hack" / "replay"))["CASES"]
    page = (_ROOT / "docs" / "track-record.md").read_text()
    rows = dict(re.findall(r"^\| (\d+) \|.*\| ([0-9a-f]{7}) \|$", page, re.MULTILINE))
    assert rows == {str(number): fix for number, (fix, _) in cases.items()}
    assert len(cases) >= 10
