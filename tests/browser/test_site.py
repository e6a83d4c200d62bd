"""The site (`make docs`) as its reader sees it: in light and dark, at a desk and on a phone."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

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
