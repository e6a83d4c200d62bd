"""Pages, source strings and test names are written in plain English; the glossary has the product's words.

No area may use a pattern; an exception has its count here.
"""

from __future__ import annotations

import ast
import functools
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GLOSSARY = (ROOT / "docs" / "glossary.md").read_text()
WORDS = (
    "asleep", "awake", "hold", "wake", "park", "release", "hand-over", "engage settle", "cooldown",
    "trigger", "obstacle", "quarantine",
)  # fmt: skip

# A pattern, and what to write in its place. "There is no X" is good English.
_IDIOMS = "longer|more than|less|fewer|later|different|doubt|point|need|reason|way|cause|one|such"
PATTERNS = {
    "is no X": (rf"(?<!there )\b(?:is|are|was|were) no (?!{_IDIOMS})\w", "is not a X"),
    "is none": (r"\b(?:is|are|was|were) (?-i:none)\b", "there is no X; is not a X; is empty"),
    "has none": (r"\b(?:has|have|had) none\b", "has no X"),
    "no more": (r"\bno more\b(?! than)", "no longer; only"),
    "any more": (r"\bany more\b", "no longer"),
    "in order": (r"\b(?:is|are|was|be|not) in order\b(?! to)", "valid; healthy"),
    "told": (r"\btold\b", "reported; sent; knows"),
    "said": (r"\bsaid\b", "reported; stated"),
    "anew": (r"\banew\b", "again"),
    "somebody": (r"\b(?:some|no|every)body\b", "the noun: client, user, another writer"),
    "whoever": (r"\bwhom?ever\b", "the noun: client, user, another writer"),
    "in vain": (r"\bin vain\b", "without effect"),
    "for ever": (r"\bfor ever\b", "indefinitely"),
    "by another hand": (r"\b(?:by another hand|doorway|greeting)\b", "by another field manager"),
    "so long as": (r"\bso (?:long|many|much) as\b", "while; as long as"),
    "to be had": (r"\bto be had\b", "available"),
    "hears of": (r"\bhears?\b", "is notified; receives"),
    "but for": (r"\b(?:but for|save for)\b", "except for"),
    "as it is": (r"\bas (?:it is|they are)\b(?! \w+ed\b)", "unchanged"),
    "where there is": (
        r"\bwhere (?:there (?:is|are)|(?:it|one) (?:is|has)|they are|none|nothing)\b(?! (?:ahead|in the))",
        "if; when",
    ),
    "since when": (r"\b(?:since|until) when\b", "when it began, when it ends; for how long"),
    "if it were": (r"\b(?:it|one|this) were\b", "plain present or past tense"),
}
# Uses that are left: `greeting` is the name of a parameter.
LIMITS: dict[str, dict[str, int]] = {"source": {"by another hand": 1}}


def page_text(page: Path) -> str:
    """A page without what it quotes: code, and messages of programs."""
    text = re.sub(r"^ *```.*?^ *```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"`[^`]*`|\"[^\"\n]*\"", "", text)
    return "\n".join(line for line in text.splitlines() if not line.lstrip().startswith(">"))


def source_text(module: Path) -> str:
    """The strings and comments of a module."""
    parts = [
        node.value
        for node in ast.walk(ast.parse(module.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    with module.open() as lines:
        tokens = tokenize.generate_tokens(lines.readline)
        comments = [
            token.string.lstrip("#: ") for token in tokens if token.type == tokenize.COMMENT
        ]
    return "\n|\n".join([*parts, "\n".join(comments)])


def names_of_tests(module: Path) -> str:
    """The names of a module's tests, as words."""
    names = re.findall(r"^ *(?:async )?def (test_\w+)", module.read_text(), re.MULTILINE)
    return "\n|\n".join(name.replace("_", " ") for name in names)


def files(*places: str) -> Iterator[Path]:
    for place in places:
        yield from sorted(ROOT.glob(place))


@functools.cache
def texts(area: str) -> dict[str, str]:
    """The prose of an area, by file."""
    places = {
        "pages": (
            page_text,
            ("*.md", "docs/**/*.md", "packages/*/README.md", "charts/*/README.md"),
        ),
        "source": (source_text, ("packages/*/src/**/*.py",)),
        "tests": (names_of_tests, ("tests/**/test_*.py", "packages/*/tests/**/test_*.py")),
    }
    read, globs = places[area]
    # CONTRIBUTING is about the words themselves.
    found = (path for path in files(*globs) if path.name != "CONTRIBUTING.md")
    return {str(path.relative_to(ROOT)): " ".join(read(path).split()) for path in found}


def uses(area: str, name: str) -> list[str]:
    """Where an area uses a pattern, with the words around it."""
    pattern = re.compile(PATTERNS[name][0], re.IGNORECASE)
    return [
        f"{path}: …{text[max(0, match.start() - 40) : match.end() + 30]}…"
        for path, text in texts(area).items()
        for match in pattern.finditer(text)
    ]


@pytest.mark.parametrize("name", PATTERNS)
@pytest.mark.parametrize("area", ["pages", "source", "tests"])
def test_prose_is_plain(area: str, name: str):
    found = uses(area, name)
    limit = LIMITS.get(area, {}).get(name, 0)
    assert len(found) <= limit, f"write: {PATTERNS[name][1]}\n" + "\n".join(found)


def test_the_glossary_has_the_dozen_words():
    assert re.findall(r"^\| \*\*([^*]+)\*\* \|", GLOSSARY, re.MULTILINE) == list(WORDS)


def test_the_glossary_is_linked_from_where_people_begin():
    for page in ("README.md", "CONTRIBUTING.md"):
        assert "(docs/glossary.md)" in (ROOT / page).read_text()
