"""What the guides show must exist: every Python block compiles, and every import in it works."""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path

import pytest

GUIDES = sorted((Path(__file__).parents[2] / "docs" / "guide").glob("*.md"))
BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)


def blocks() -> list[tuple[str, str]]:
    return [
        (f"{guide.name}#{number}", block)
        for guide in GUIDES
        for number, block in enumerate(BLOCK.findall(guide.read_text()), 1)
    ]


@pytest.mark.parametrize(("where", "block"), blocks(), ids=lambda value: value.split("\n")[0][:40])
def test_a_block_of_a_guide_compiles_and_imports_what_exists(where, block):
    tree = ast.parse(block, filename=where)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            module = importlib.import_module(node.module or "")
            for alias in node.names:
                assert hasattr(module, alias.name), f"{where}: {node.module} has no {alias.name}"


def test_links_between_documents_lead_somewhere():
    docs = Path(__file__).parents[2] / "docs"
    for page in docs.rglob("*.md"):
        for link in re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text()):
            assert (page.parent / link).exists(), f"{page.name} links to {link}"
