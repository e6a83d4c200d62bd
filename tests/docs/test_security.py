"""Every promise of docs/security.md names tests, and the tests exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "security.md").read_text()
ATTACKERS = {"client", "pod", "tenant", "resolver", "operator", "website", "visitor", "failure"}


def promises() -> list[tuple[str, list[str]]]:
    """The attacker and the tests of each row of the table."""
    section = PAGE.split("## Threat model")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (\w+) \| (?!promise)(.+) \| (.+) \|$", section, re.MULTILINE)
    return [(attacker, re.findall(r"`(test_\w+)`", tests)) for attacker, _, tests in rows]


def test_every_promise_names_tests_that_exist():
    defined: set[str] = set()
    for folder in ("packages", "tests"):
        for path in (ROOT / folder).rglob("test_*.py"):
            defined |= set(
                re.findall(r"^ *(?:async )?def (test_\w+)", path.read_text(), re.MULTILINE)
            )
    rows = promises()
    assert {attacker for attacker, _ in rows} == ATTACKERS
    assert [row for row in rows if not row[1]] == []
    missing = {name for _, tests in rows for name in tests} - defined
    assert missing == set(), "docs/security.md names tests that are not there"
