"""The site has every page, once; `make docs` makes it, and fails on links that lead nowhere."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hack.site import api_pages, inside

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs").rglob("*.md"))
CONFIG = tomllib.loads((ROOT / "zensical.toml").read_text())["project"]


def navigation(entry: Any) -> Iterator[str]:
    if isinstance(entry, str):
        yield entry
    elif isinstance(entry, dict):
        for inner in entry.values():
            yield from navigation(inner)
    else:
        for inner in entry:
            yield from navigation(inner)


def test_every_page_is_in_the_navigation_once():
    written = {str(path.relative_to(ROOT / "docs")) for path in PAGES}
    assert sorted(navigation(CONFIG["nav"])) == sorted(written | set(api_pages())), (
        "name the page in zensical.toml"
    )


def labels(entry: Any) -> Iterator[tuple[str, str]]:
    for inner in entry if isinstance(entry, list) else [entry]:
        for label, page in inner.items() if isinstance(inner, dict) else ():
            if isinstance(page, str):
                yield label, page
            else:
                yield from labels(page)


def test_a_label_of_the_navigation_is_the_title_of_its_page():
    pages = [(label, ROOT / "docs" / page) for label, page in labels(CONFIG["nav"])]
    titles = [
        (label, re.findall(r"^# (.+)$", page.read_text(), re.MULTILINE)[0])
        for label, page in pages
        if page.exists()
    ]
    assert len(titles) > 30
    assert [(label, title) for label, title in titles if label != title] == []


def test_the_site_has_two_tabs():
    assert [name for entry in CONFIG["nav"] for name in entry] == ["Elasti", "kubeloop"]


def test_the_api_reference_has_what_a_package_shows():
    pages = api_pages()
    assert "::: kubeloop.client.client.Client\n" in pages["kubeloop/api/client.md"]
    assert "::: kubeloop.objects.selectors\n" in pages["kubeloop/api/objects.md"]


def test_links_that_leave_the_pages_are_named_by_their_path():
    text = inside(ROOT / "docs" / "guide" / "controllers.md")
    assert "[Informers](informers.md)" in text
    assert "one file, `examples/websites.py`, and" in text


def test_a_bar_in_code_of_a_table_is_shown_unchanged():
    assert "[table|wide|json|yaml|name]" in inside(ROOT / "docs" / "reference" / "cli.md")


def test_how_a_page_is_made_is_not_on_the_site():
    generated = [page for page in PAGES if "do not edit" in page.read_text()]
    assert len(generated) > 4
    assert [page.name for page in generated if "do not edit" in inside(page)] == []
    assert inside(generated[0]).startswith("# ")


ITEM = re.compile(r" *(- |\d+\. )")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_lists_are_lists_for_every_reader_of_markdown(page: Path):
    """Python-Markdown wants an empty line before a list, and four spaces for what belongs to an item."""
    text = re.sub(r"^( *)```.*?^\1```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    before, within = "", False
    for line in text.splitlines():
        if ITEM.match(line):
            assert not before.strip() or before.startswith("#") or within, (
                f"an empty line is missing before: {line}"
            )
            within = True
        elif line.strip():
            broken = within and not before.strip() and re.match(r" {1,3}\S", line)
            assert not broken, f"four spaces are missing before: {line.strip()}"
            within = within and (line.startswith(" ") or bool(before.strip()))
        before = line
