"""The pages, and the blocks that readers copy from them."""

from __future__ import annotations

import functools
import json
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jsonschema_rs
import pytest

ROOT = Path(__file__).parents[2]
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("packages/*/*.md")]
FENCE = re.compile(r'^( *)```(\w*)(?: title="(.*?)")?\n(.*?)^\1```', re.DOTALL | re.MULTILINE)


class Block(NamedTuple):
    where: str
    language: str
    text: str
    title: str = ""

    @property
    def page(self) -> str:
        return self.where.partition("#")[0]


def blocks(*languages: str) -> list[Block]:
    return [
        Block(f"{page.relative_to(ROOT)}#{number}", language, textwrap.dedent(text), title)
        for page in sorted(PAGES)
        for number, (_, language, title, text) in enumerate(FENCE.findall(page.read_text()), 1)
        if language in languages or not languages
    ]


def named(items: list[Block]) -> Any:
    return pytest.mark.parametrize("block", items, ids=[item.where for item in items])


def typed(block: Block) -> Iterator[tuple[str, list[str]]]:
    """The lines that a reader types, and what the page shows below each."""
    lines = block.text.replace("\\\n", " ").splitlines()
    if block.language == "sh":
        lines = [f"$ {line}" for line in lines]
    starts = [number for number, line in enumerate(lines) if line.startswith("$ ")]
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        yield lines[start][2:], [line for line in lines[start + 1 : end] if line]


@functools.cache
def values_schema() -> Any:
    schema = json.loads((ROOT / "charts" / "elasti" / "values.schema.json").read_text())
    return jsonschema_rs.validator_for(schema)


def check_values(values: dict[str, Any]) -> None:
    assert [str(error) for error in values_schema().iter_errors(values)] == []
