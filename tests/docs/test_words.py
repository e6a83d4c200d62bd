"""The pages speak the field's words, and the glossary has the product's."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GLOSSARY = (ROOT / "docs" / "glossary.md").read_text()
# Generated, numbered, or about the words themselves.
LEFT_OUT = {"conformance.md", "spec.md", "spec-deviations.md", "glossary.md", "CONTRIBUTING.md"}
PAGES = sorted(
    page
    for place in ("*.md", "docs/**/*.md", "packages/*/README.md")
    for page in ROOT.glob(place)
    if page.name not in LEFT_OUT
)
WORDS = (
    "asleep", "awake", "hold", "wake", "park", "release", "hand-over", "engage settle", "cooldown",
    "trigger", "obstacle", "quarantine",
)  # fmt: skip


def unused_words() -> list[str]:
    table = GLOSSARY.split("## Words that we do not use")[1]
    rows = re.findall(r"^\| (?!not |---)([^|]+) \|", table, re.MULTILINE)
    return [word.strip() for row in rows[:3] for word in row.split(",")]


def prose(page: Path) -> str:
    """A page without what it quotes: code, and messages of programs."""
    text = re.sub(r"^ *```.*?^ *```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"`[^`]*`|\"[^\"\n]*\"", "", text)
    return "\n".join(line for line in text.splitlines() if not line.lstrip().startswith(">"))


def test_the_glossary_has_the_dozen_words():
    assert re.findall(r"^\| \*\*([^*]+)\*\* \|", GLOSSARY, re.MULTILINE) == list(WORDS)


def test_the_glossary_is_linked_from_where_people_begin():
    for page in ("README.md", "CONTRIBUTING.md"):
        assert "(docs/glossary.md)" in (ROOT / page).read_text()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_is_free_of_the_private_dialect(page: Path):
    pattern = re.compile(rf"\b({'|'.join(unused_words())})\b", re.IGNORECASE)
    assert pattern.findall(prose(page)) == []
