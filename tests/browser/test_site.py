"""The site (`make docs`) as its reader sees it: in light and dark, at a desk and on a phone."""

from __future__ import annotations

import html
import re
import tomllib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import web

from tests.browser.conftest import Page, Shot
from tests.web_server import web_server

SITE = Path(__file__).parents[2] / "build" / "site"
PHONE = {"width": 400, "height": 800}
DESK = {"width": 1280, "height": 1000}


@pytest_asyncio.fixture(loop_scope="session")
async def site() -> AsyncIterator[str]:
    """The site's address, on a server that has nothing else."""
    async with web_server(web.static("/", SITE)) as url:
        yield url


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["start", "howto/traefik", "reference/fields"])
async def test_a_page_is_whole_and_loads_nothing_from_elsewhere(
    page: Page, shot: Shot, site: str, name: str, scheme: str
):
    asked, complaints = [], []
    page.on("request", lambda request: asked.append(request.url))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    await page.emulate_media(color_scheme=scheme)
    for size in (DESK, PHONE):
        await page.set_viewport_size(size)
        await page.goto(f"{site}/{name}.html")
        overflow = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        assert await page.evaluate(overflow) <= 0
        await shot(page, f"site-{name.replace('/', '-')}-{scheme}-{size['width']}")
    background = await page.evaluate("getComputedStyle(document.body).backgroundColor")
    is_light = sum(map(int, background.strip("rgba()").split(",")[:3])) > 3 * 128
    assert is_light == (scheme == "light")
    assert [url for url in asked if not url.startswith(site)] == []
    assert complaints == []


AXE = """axe.run({exclude: %s}, {resultTypes: ["violations"]}).then(found => found.violations.flatMap(
    rule => rule.nodes.map(node => `${rule.id}: ${node.target.join(" ")}: ${node.failureSummary}`)))"""


def pages() -> list[str]:
    """Return the site's pages."""
    return sorted(str(path.relative_to(SITE)) for path in SITE.rglob("*.html"))


async def violations(page: Page, url: str, *, menu: bool = True) -> list[str]:
    axe = pytest.importorskip("axe_playwright_python", reason="tests/browser/requirements.txt")
    await page.goto(url)
    await page.add_script_tag(path=Path(axe.__file__).parent / "axe.min.js")
    found: list[str] = await page.evaluate(AXE % ("[]" if menu else '[[".md-nav--primary"]]'))
    return found


KINDS = ("index", "start", "comparison", "reference/fields", "howto/doze", "kubeloop/api/aio")


@pytest.mark.timeout(900)
async def test_axe_finds_nothing_on_any_page(page: Page, site: str):
    # The menu has every page's name and takes most of the time; those of KINDS have it checked.
    await page.emulate_media(color_scheme="light")
    await page.set_viewport_size(DESK)
    found = {name: await violations(page, f"{site}/{name}", menu=False) for name in pages()}
    assert len(found) > 80
    assert {name: complaints for name, complaints in found.items() if complaints} == {}


@pytest.mark.parametrize(("scheme", "size"), [("light", DESK), ("dark", DESK), ("light", PHONE)])
async def test_axe_finds_nothing_with_the_menu_in_dark_or_on_a_phone(
    page: Page, site: str, scheme: str, size: dict[str, int]
):
    await page.emulate_media(color_scheme=scheme)
    await page.set_viewport_size(size)
    found = {name: await violations(page, f"{site}/{name}.html") for name in KINDS}
    assert {name: complaints for name, complaints in found.items() if complaints} == {}


async def test_axe_would_find_something(page: Page, site: str):
    await page.goto(f"{site}/start.html")
    await page.evaluate(
        "document.querySelector('article').insertAdjacentHTML('beforeend', '<img src=x>')"
    )
    axe = pytest.importorskip("axe_playwright_python", reason="tests/browser/requirements.txt")
    await page.add_script_tag(path=Path(axe.__file__).parent / "axe.min.js")
    assert any(one.startswith("image-alt") for one in await page.evaluate(AXE % "[]"))


@pytest.mark.parametrize(
    ("query", "wanted"),
    [
        ("scale to zero postgres", "howto/databases.html"),
        ("cooldownPeriod", "reference/fields.html"),
    ],
)
async def test_search_finds_the_page_that_is_meant(page: Page, site: str, query: str, wanted: str):
    await page.set_viewport_size(DESK)
    await page.goto(f"{site}/index.html")
    await page.keyboard.press("/")
    await page.keyboard.type(query, delay=10)
    link = page.locator(f"a[href*='{wanted}']:visible").first
    await link.wait_for(timeout=10_000)


async def test_titles_and_menu_say_the_same():
    menu = tomllib.loads((SITE.parents[1] / "zensical.toml").read_text())["project"]["nav"]
    differ = {
        place: (title, heading)
        for title, place in named(menu)
        if (
            heading := re.search(
                r"<h1[^>]*>(.*?)(?:<a |</h1>)", (SITE / place).read_text(), re.DOTALL
            )
        )
        and html.unescape(re.sub(r"<[^>]+>", "", heading[1])).strip() != title
    }
    assert differ == {}


def named(menu: list[Any]) -> Iterator[tuple[str, str]]:
    """Yield each page that the menu names, with its title there."""
    for entry in menu:
        for title, below in entry.items() if isinstance(entry, dict) else ():
            if isinstance(below, list):
                yield from named(below)
            else:
                yield title, below.replace(".md", ".html")
