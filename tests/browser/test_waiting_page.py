"""The waiting page in a real browser: who sees it, what it says, and that no request is lost to it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from tests.browser.conftest import Browser, Context, Page, Shot
from tests.browser.sleeping import Bed, Sleeper, bed, prefixed
from tests.waiting import eventually


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def beds(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Bed]:
    async with bed(tmp_path_factory.mktemp("sleeping")) as made:
        yield made


async def until_stage(page: Page, text: str) -> None:
    await page.get_by_role("status").filter(has_text=text).wait_for()


async def until_app(page: Page) -> None:
    await page.get_by_role("heading", name="The app").wait_for()


def navigations(sleeper: Sleeper) -> list[str]:
    return [path for path in sleeper.app.asked("GET") if path != "/favicon.ico"]


# Who sees it


async def test_a_fast_wake_shows_no_page(beds: Bed, page: Page):
    sleeper = await beds.sleeper(after="20s")
    going = asyncio.create_task(page.goto(sleeper.url))
    await sleeper.resolver.holds(1, sleeper.name)
    await sleeper.wake()
    assert (await going).status == 200
    await until_app(page)
    assert navigations(sleeper) == ["/"]


async def test_a_slow_wake_shows_its_stages_and_then_the_app(beds: Bed, page: Page, shot: Shot):
    sleeper = await beds.sleeper()
    response = await page.goto(f"{sleeper.url}/cart?item=1#top")
    assert (response.status, response.headers["cache-control"]) == (503, "no-store")
    assert await page.get_by_role("heading", level=1).text_content() == "Shop"
    await until_stage(page, "Finding a place to run")
    await shot(page, "placing")
    await sleeper.place()
    await until_stage(page, "Starting")
    await page.set_viewport_size({"width": 640, "height": 360})
    await shot(page, "waiting-page")
    assert sleeper.app.requests == []
    activity = await sleeper.resolver.activity(sleeper.name)
    assert activity["open"] == activity["held"] == 1, "the open page is in use"
    await sleeper.wake()
    await until_app(page)
    assert page.url == f"{sleeper.url}/cart?item=1#top"
    assert navigations(sleeper) == ["/cart?item=1"]
    assert not any("x-elasti-wait" in headers for headers in sleeper.app.headers)


@pytest.mark.parametrize("script", [True, False], ids=["javascript", "no-javascript"])
async def test_each_part_of_an_app_has_a_row(beds: Bed, browser: Browser, shot: Shot, script: bool):
    sleeper, database = await beds.dependent(after="0s")
    context = await browser.new_context(java_script_enabled=script)
    page = await context.new_page()
    await page.goto(sleeper.url)
    rows = page.get_by_role("listitem")
    await rows.filter(has_text="postgres: starting").wait_for()
    assert await rows.all_text_contents() == ["postgres: starting", "shop: waiting"]
    await database.wake()
    await rows.filter(has_text="postgres: ready").wait_for()
    assert await rows.all_text_contents() == ["postgres: ready", "shop: starting"]
    await shot(page, f"parts-{'script' if script else 'plain'}")
    await sleeper.wake()
    await until_app(page)
    await context.close()


async def test_nothing_of_the_page_is_cached(beds: Bed, page: Page):
    sleeper = await beds.sleeper(status=200)
    await page.goto(sleeper.url)
    await until_stage(page, "Finding")
    await sleeper.wake()
    await until_app(page)
    for _ in range(2):
        response = await page.reload()
        assert response.headers.get("x-elasti-state") is None
        await until_app(page)


async def test_a_forms_post_is_held_and_arrives_once(beds: Bed, page: Page):
    sleeper = await beds.sleeper(after="0s")
    form = f"<form method=post action='{sleeper.url}/order'><input name=item value=7><button>Buy"
    await page.set_content(form)
    await page.get_by_role("button").click(no_wait_after=True)
    await sleeper.resolver.holds(1, sleeper.name)
    # A navigation gets its page meanwhile: the post has waited for longer than that.
    beside = await page.context.new_page()
    await beside.goto(sleeper.url)
    await until_stage(beside, "Finding")
    await sleeper.wake()
    await page.get_by_text("POST /order item=7").wait_for()
    assert sleeper.app.asked("POST") == ["/order"]


async def test_a_fetch_of_an_app_is_held(beds: Bed, page: Page):
    sleeper = await beds.sleeper(after="0s")
    await sleeper.wake()
    await page.goto(sleeper.url)
    await sleeper.place()
    async with aiohttp.ClientSession(headers={"Accept": "text/html"}) as visitor:

        async def sleeps() -> bool:
            async with visitor.get(sleeper.url) as response:
                return response.status == 503

        await eventually(sleeps)
    fetched = asyncio.create_task(page.evaluate("fetch('data').then((r) => r.text())"))
    await sleeper.resolver.holds(1, sleeper.name)
    await sleeper.wake()
    assert "GET /data" in await fetched


async def test_more_than_may_be_held_see_the_page_and_get_in(beds: Bed, context: Context):
    sleeper = await beds.sleeper(after="0s", wake={"maxHeld": 1})
    pages = [await context.new_page() for _ in range(3)]
    for page in pages:
        response = await page.goto(sleeper.url)
        assert response.status == 503
    # One of them holds the only place.
    await pages[2].get_by_role("status").filter(has_text="Many visitors are waiting").wait_for()
    await sleeper.wake()
    await asyncio.gather(*map(until_app, pages))


async def test_ten_tabs_all_get_the_app(beds: Bed, context: Context):
    sleeper = await beds.sleeper(after="0s")
    pages = [await context.new_page() for _ in range(10)]
    going = [asyncio.create_task(page.goto(sleeper.url)) for page in pages]
    await until_stage(pages[0], "Finding")
    await sleeper.wake()
    await asyncio.gather(*going)
    await asyncio.gather(*map(until_app, pages))
    assert len(navigations(sleeper)) == 10


async def test_back_leads_to_where_the_visitor_came_from(beds: Bed, page: Page):
    awake, sleeper = await beds.sleeper(), await beds.sleeper()
    await awake.wake()
    await page.goto(f"{awake.url}/list")
    await page.goto(f"{sleeper.url}/item")
    await until_stage(page, "Finding")
    await sleeper.wake()
    await until_app(page)
    await page.go_back()
    assert page.url == f"{awake.url}/list"
    await page.go_forward()
    await page.get_by_text("GET /item").wait_for()


async def test_under_a_path_prefix_behind_nginx(beds: Bed, page: Page, tmp_path: Path):
    sleeper = await beds.sleeper()
    async with prefixed(sleeper.url, tmp_path) as url:
        await page.goto(f"{url}/cart")
        await until_stage(page, "Finding")
        await sleeper.place()
        await until_stage(page, "Starting")
        await sleeper.wake()
        await page.get_by_text("GET /cart").wait_for()
        assert page.url == f"{url}/cart"


async def test_without_javascript_the_page_loads_itself_again(
    beds: Bed, browser: Browser, shot: Shot
):
    sleeper = await beds.sleeper(after="0s")
    context = await browser.new_context(java_script_enabled=False)
    page = await context.new_page()
    await page.goto(sleeper.url)
    await until_stage(page, "Finding")
    await shot(page, "no-javascript")
    await sleeper.wake()
    await until_app(page)
    await context.close()


async def test_nothing_wakes_before_the_click(beds: Bed, page: Page, shot: Shot):
    sleeper = await beds.sleeper(requireClick=True)
    await sleeper.was_woken()
    await page.goto(sleeper.url)
    await until_stage(page, "asleep to save resources")
    await shot(page, "asleep")
    assert not await sleeper.was_woken()
    await page.keyboard.press("Tab")
    await page.keyboard.press("Enter")
    await until_stage(page, "Finding")
    assert await sleeper.was_woken()
    assert await page.get_by_role("button").count() == 0
    await sleeper.wake()
    await until_app(page)


async def test_a_target_that_cannot_start_says_so_and_not_why(beds: Bed, page: Page, shot: Shot):
    sleeper = await beds.sleeper()
    await sleeper.break_pod("ImagePullBackOff")
    await page.goto(sleeper.url)
    await until_stage(page, "Could not be started")
    reference = await page.locator("[data-elasti=reference]").text_content()
    assert re.fullmatch(r"[0-9a-f]{8}", reference)
    await shot(page, "cannot-start")
    shown = await page.content()
    assert "ImagePull" not in shown
    assert "registry" not in shown
    assert reference in sleeper.resolver.log.read_text()
    assert "ImagePullBackOff" in sleeper.resolver.log.read_text()
    await sleeper.wake()
    await until_app(page)


async def test_a_page_asks_again_until_the_app_itself_answers(beds: Bed, page: Page):
    sleeper = await beds.sleeper(after="0s")
    # A resolver that is replaced, a gateway that says so, and then the app, without any resolver.
    answers, navigated = [0, 503, 200], 0

    async def answer(route: Any) -> None:
        if not answers or "x-elasti-wait" not in route.request.headers:
            await route.continue_()
        elif status := answers.pop(0):
            await route.fulfill(status=status, body="not ours")
        else:
            await route.abort()

    def count(request: Any) -> None:
        nonlocal navigated
        navigated += request.is_navigation_request()

    page.on("request", count)
    await page.route("**/*", answer)
    await page.goto(sleeper.url)
    await eventually(lambda: navigated == 2)
    assert answers == []
    await sleeper.wake()
    await until_app(page)


# How it looks


def contrast(one: str, other: str) -> float:
    """The contrast of two colours, as WCAG defines it."""

    def luminance(colour: str) -> float:
        parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
        linear = [p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


COLOURS = """() => [...document.querySelectorAll("h1, p, li, code, button")].filter((e) => e.checkVisibility())
  .map((e) => [e.textContent.trim(), getComputedStyle(e).color,
    e.tagName === "BUTTON" ? getComputedStyle(e).backgroundColor : getComputedStyle(document.body).backgroundColor])"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_every_state_is_readable_in_light_and_dark(
    beds: Bed, browser: Browser, shot: Shot, scheme: str
):
    small = {"width": 320, "height": 568}
    context = await browser.new_context(color_scheme=scheme, viewport=small)
    page = await context.new_page()
    waiting, _ = await beds.dependent(title="A shop with a rather long name")
    broken = await beds.sleeper()
    asleep = await beds.sleeper(requireClick=True)
    await broken.break_pod("CrashLoopBackOff")
    for name, sleeper, text in (
        ("waiting", waiting, "Waking up"),
        ("failed", broken, "Could not"),
        ("asleep", asleep, "asleep to save"),
    ):
        await page.goto(sleeper.url)
        await until_stage(page, text)
        found = await page.evaluate(COLOURS)
        assert len(found) >= 3
        for words, front, back in found:
            assert contrast(front, back) >= 4.5, (words, front, back)
        width = await page.evaluate("document.documentElement.scrollWidth")
        assert width <= 320, "nothing is cut off on a narrow screen"
        await shot(page, f"{name}-{scheme}-narrow")
    await context.close()


async def test_assistive_technology_announces_the_stages(beds: Bed, page: Page):
    sleeper = await beds.sleeper()
    await page.goto(sleeper.url)
    await until_stage(page, "Finding")
    heard = await page.locator("body").aria_snapshot()
    assert '- heading "Shop" [level=1]' in heard
    assert "- status: Finding a place to run" in heard
    assert "- main:" in heard
    assert await page.evaluate("document.documentElement.lang") == "en"
    assert "Finding a place to run" in await page.title()


async def test_motion_stops_if_the_user_prefers_less(beds: Bed, browser: Browser):
    sleeper = await beds.sleeper()
    for wish, moving in (("no-preference", True), ("reduce", False)):
        context = await browser.new_context(reduced_motion=wish)
        page = await context.new_page()
        await page.goto(sleeper.url)
        await until_stage(page, "Finding")
        assert bool(await page.evaluate("document.getAnimations().length")) is moving
        await context.close()


# A page of the tenant's own

BRANDED = """<title>{{title}}</title><style>h1 { color: rgb(1, 2, 3) }</style>
<h1>{{title}}</h1><p role="status" data-elasti="stage">{{stage}}</p>
<img alt="logo" src="data:image/gif;base64,R0lGODlhAQABAAAAACH5BAEKAAEALAAAAAABAAEAAAICTAEAOw==">"""
HOSTILE = """<h1>{{title}}</h1><p role="status" data-elasti="stage">{{stage}}</p>
<script>document.title = "owned"</script><img src="x" onerror="document.title='owned'">
<base href="http://198.51.100.1/"><script src="http://198.51.100.1/evil.js"></script>
<link rel="stylesheet" href="http://198.51.100.1/evil.css"><img src="http://198.51.100.1/seen.gif">
<iframe src="http://198.51.100.1/"></iframe>
<form action="http://198.51.100.1/" method="post"><button>Log in</button></form><!--"""


def in_config_map(key: str) -> dict[str, Any]:
    return {"template": {"configMap": {"key": key}}}


async def test_a_branded_page_is_shown_and_kept_up_to_date(beds: Bed, page: Page, shot: Shot):
    await beds.template("branded.html", BRANDED)
    sleeper = await beds.sleeper(title="<b>Shop</b> & co", **in_config_map("branded.html"))
    await page.goto(sleeper.url)
    heading = page.get_by_role("heading")
    assert await heading.text_content() == "<b>Shop</b> & co"
    assert await heading.evaluate("(e) => getComputedStyle(e).color") == "rgb(1, 2, 3)"
    assert await page.get_by_alt_text("logo").evaluate("(e) => e.naturalWidth") == 1
    await sleeper.place()
    await until_stage(page, "Starting")
    await shot(page, "branded")
    await sleeper.wake()
    await until_app(page)


async def test_a_hostile_template_runs_no_script_and_loads_nothing(beds: Bed, page: Page):
    await beds.template("hostile.html", HOSTILE)
    sleeper = await beds.sleeper(**in_config_map("hostile.html"))
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("requestfailed", lambda request: asked.remove(request.url))
    await page.goto(sleeper.url)
    await until_stage(page, "Finding")
    await sleeper.place()
    await until_stage(page, "Starting")
    assert "owned" not in await page.title()
    # Playwright waits for what the form would lead to: until the app is opened.
    await page.get_by_role("button", name="Log in").dispatch_event("click")
    await sleeper.wake()
    await until_app(page)
    assert [url for url in asked if not url.startswith(sleeper.url)] == []


@pytest.mark.parametrize("key", ["missing.html", "large.html"])
async def test_a_template_that_cannot_be_used_leaves_the_built_in_page(
    beds: Bed, page: Page, key: str
):
    await beds.template("large.html", "<h1>large</h1>" + " " * 70_000)
    sleeper = await beds.sleeper(**in_config_map(key))
    await page.goto(sleeper.url)
    await until_stage(page, "Finding")
    assert await page.get_by_role("heading").text_content() == "Shop"
    await sleeper.wake()
    await until_app(page)
