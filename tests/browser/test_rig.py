"""The browser itself: it starts, shows a page, and takes its picture."""

from __future__ import annotations

from tests.browser.conftest import Page, Shot


async def test_a_page_is_shown_and_its_picture_taken(page: Page, shot: Shot):
    await page.set_content("<main><h1>Hello</h1></main>")
    assert await page.locator("main").aria_snapshot() == '- main:\n  - heading "Hello" [level=1]'
    assert (await shot(page, "rig")).stat().st_size > 1000
