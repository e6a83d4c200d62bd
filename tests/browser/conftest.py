"""A real browser for what people see: Debian's Chromium, driven by Playwright; one for the session.

`context` is a fresh profile, `page` a tab in it; `shot` saves a picture into build/browser, and with
`make browser BROWSER_ARGS=--update-docs` over the one of docs/images that has its name. Tests and their
fixtures run on the session's event loop, where the browser lives: fixtures need `loop_scope="session"`.
Where Chromium or Playwright is missing the tests are skipped with one line; with CI=true they fail.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

import pytest
import pytest_asyncio

HERE = Path(__file__).parent
PICTURES = HERE.parents[1] / "build" / "browser"
DOCS = HERE.parents[1] / "docs" / "images"
CHROMIUM = ("chromium", "chromium-browser", "google-chrome")

# Playwright is not among the development dependencies, and mypy runs without it.
Browser: TypeAlias = Any
Context: TypeAlias = Any
Page: TypeAlias = Any
Shot: TypeAlias = Callable[[Page, str], Awaitable[Path]]


def pytest_addoption(parser: pytest.Parser) -> None:
    about = "make the pictures of docs/images again"
    parser.addoption("--update-docs", action="store_true", help=about)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run what is here on the browser's loop; what Playwright leaves there is no leak of a test."""
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)
            item.add_marker(pytest.mark.allow_leaks)


def missing(what: str) -> NoReturn:
    message = f"no browser to test with: {what}"
    if os.environ.get("CI") == "true":
        pytest.fail(message, pytrace=False)
    pytest.skip(message)


async def violations(page: Page) -> list[str]:
    """Return what axe finds against a page, a line for each rule with the first element."""
    found = importlib.util.find_spec("axe_playwright_python")
    if found is None or found.origin is None:
        missing(f"pip install -r {HERE.relative_to(HERE.parents[1])}/requirements.txt")
    await page.evaluate(Path(found.origin).with_name("axe.min.js").read_text("utf-8"))
    told: list[str] = await page.evaluate(
        """async () => (await axe.run(document, { resultTypes: ["violations"] })).violations
           .map((rule) => `${rule.id}: ${rule.nodes.length} as ${rule.nodes[0].html}: ${rule.nodes[0].failureSummary}`)"""
    )
    return told


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser() -> AsyncIterator[Browser]:
    """The one Chromium of the session."""
    executable = next(filter(None, map(shutil.which, CHROMIUM)), None)
    if executable is None:
        missing("apt-get install chromium")
    try:
        from playwright.async_api import async_playwright  # noqa: PLC0415
    except ImportError:
        missing(f"pip install -r {HERE.relative_to(HERE.parents[1])}/requirements.txt")
    async with async_playwright() as playwright:
        # Without a sandbox of its own: it needs rights that a container, or root, does not have.
        started = await playwright.chromium.launch(
            executable_path=executable, args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        yield started
        await started.close()


@pytest_asyncio.fixture(loop_scope="session")
async def context(browser: Browser) -> AsyncIterator[Context]:
    """A profile that nothing was stored in."""
    fresh = await browser.new_context()
    fresh.set_default_timeout(20_000)
    yield fresh
    await fresh.close()


@pytest_asyncio.fixture(loop_scope="session")
async def page(context: Context) -> Page:
    """A tab."""
    return await context.new_page()


@pytest.fixture
def shot(request: pytest.FixtureRequest) -> Shot:
    """Save a picture of a page under a name; returns where."""

    async def taken(page: Page, name: str) -> Path:
        path, shown = PICTURES / f"{name}.png", DOCS / f"{name}.png"
        await page.screenshot(path=path)
        if request.config.getoption("--update-docs") and shown.exists():
            shutil.copyfile(path, shown)
        return path

    return taken
