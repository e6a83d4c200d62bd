"""`elasti report`: what it says of plain values, in every format, and of OpenCost that fails."""

from __future__ import annotations

import asyncio
import csv
import datetime as dt
import html.parser
import json
import pathlib
from typing import Any

import pytest
from aiohttp import web
from click.testing import CliRunner

from elasti.api.prices import Prices, Rates
from elasti.api.types import CapacityStatus, ElastiService, ElastiServiceSpec, ScaleTargetRef
from elasti.api.usage import UsageRow
from elasti.cli.main import main
from elasti.cli.report import opencost_answer
from elasti.cli.report_content import Report, ReportEntry, usage_entry
from kubeloop.objects.meta import ObjectMeta
from tests.web_server import web_server

NOW = dt.datetime(2030, 1, 8, tzinfo=dt.UTC)
WEEK = dt.timedelta(days=7)
PRICES = Prices(Rates(0.03, 0.004), "EUR")


def entry(
    name: str,
    *,
    counted: bool = True,
    namespace: str = "shop",
    team: str = "",
    dozing_seconds: int = 0,
) -> ReportEntry:
    row = UsageRow(
        namespace=namespace,
        name=name,
        since=NOW - WEEK,
        asleep_seconds=5 * 86400,
        wakes=9,
        dozing_seconds=dozing_seconds,
        counted=counted,
        cpu_core_hours=60.0 * counted,
        memory_gib_hours=120.0 * counted,
    )
    spec = ElastiServiceSpec(ScaleTargetRef("apps/v1", "Deployment", name), name)
    labels = {"team": team} if team else None
    meta = ObjectMeta(name=name, namespace=namespace, labels=labels)
    return usage_entry(ElastiService(spec, meta), row, NOW)


def report(own: CapacityStatus | None = None, **given: Any) -> Report:
    entries = given.pop("entries", [entry("web"), entry("bare", counted=False)])
    return Report(entries=entries, unseen=1, own=own, now=NOW, **given)


def rendered(output: str, own: CapacityStatus | None = None, **given: Any) -> str:
    return report(own, **given).sheet().rendered(output)


def test_the_table_says_what_is_counted_from_when_and_what_is_not():
    text = rendered("table", CapacityStatus(100, 2**29))
    assert "shop        web    2030-01-01T00:00:00Z   71%      9       60.0         120.0" in text
    assert "shop        bare   2030-01-01T00:00:00Z   71%      9       -            -" in text
    assert "Not counted: 1 of 2." in text
    assert "Released: 60.0 core hours, 120.0 GiB hours." in text
    # A tenth of a core and half a GiB, for 168 hours.
    assert "requested 16.8 core hours and 84.0 GiB hours" in text
    assert "43.2 and 36.0 are left" in text
    assert "no operator has counted them yet: 1." in text
    nothing = rendered("table", CapacityStatus(), entries=[entry("bare", counted=False)])
    assert ": 0.0 and 0.0 are left" in nothing
    assert "unknown here" in rendered("table")
    assert "COST" not in text


def test_dozes_are_counted_and_named():
    dozed = entry("web", dozing_seconds=3600)
    text = rendered("table", entries=[dozed, entry("blog")])
    assert "Dozed: 1 of 2. The sums include what their pods gave back." in text
    assert report(entries=[dozed]).to_json()["services"][0]["dozing_seconds"] == 3600
    assert "Dozed" not in rendered("table")


def test_other_forms_have_the_same_figures():
    lines = list(csv.DictReader(rendered("csv").splitlines()))
    assert [line["core_hours"] for line in lines] == ["60.0", ""]
    found = report(CapacityStatus(1000, 0)).to_json()
    assert found["services"][0]["since"] == "2030-01-01T00:00:00Z"
    assert (found["cpu_core_hours"], found["own_cpu_core_hours"]) == (60.0, 168.0)
    assert "cost" not in found
    assert rendered("markdown").startswith("| NAMESPACE | NAME |")


def test_number_columns_of_csv_have_numbers_only():
    for by in ("", "namespace", "label:team"):
        lines = list(
            csv.DictReader(rendered("csv", by=by, priced=True, prices=PRICES).splitlines())
        )
        for line in lines:
            for name in ("asleep", "wakes", "core_hours", "gib_hours", "cost_eur"):
                float(line[name] or 0)


def test_costs_stand_beside_what_was_released():
    # 60 core hours at 0.03 are 1.80, 120 GiB hours at 0.004 are 0.48.
    text = rendered("table", priced=True, prices=PRICES)
    assert "COST EUR" in text
    assert "Cost of that capacity: 2.28 EUR" in text
    assert "paid for until nodes go." in text
    idle = Prices(Rates(0.03, 0.004), idle=42.0)
    assert "Idle capacity in the same time, as OpenCost reports it: 42.00." in rendered(
        "table", priced=True, prices=idle
    )
    found = report(priced=True, prices=idle).to_json()
    assert (found["idle_cost"], found["services"][1]["cost"]) == (42.0, None)
    assert found["cost"] == pytest.approx(2.28)


def test_costs_that_are_not_known_leave_their_column_empty():
    lines = list(csv.DictReader(rendered("csv", priced=True).splitlines()))
    assert lines[0]["cost"] == ""
    assert "Cost of" not in rendered("table", priced=True)


def test_groups_are_sums():
    entries = [entry("web", team="a"), entry("api", namespace="blog", team="a"), entry("db")]
    given: dict[str, Any] = {"entries": entries, "priced": True, "prices": PRICES}
    lines = list(csv.DictReader(rendered("csv", by="label:team", **given).splitlines()))
    assert [(line["team"], line["services"], line["cost_eur"]) for line in lines] == [
        ("-", "1", "2.28"),
        ("a", "2", "4.56"),
    ]
    groups = report(by="namespace", **given).to_json()["groups"]
    assert [(one["group"], one["core_hours"]) for one in groups] == [
        ("blog", 60.0),
        ("shop", 120.0),
    ]


class Page(html.parser.HTMLParser):
    """What a browser would make of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))


def test_the_page_stands_alone_and_escapes_names():
    entries = [entry("<img src=x>"), entry("half")]
    text = rendered("html", entries=entries, priced=True, prices=PRICES)
    page = Page(text)
    names = [tag for tag, _ in page.tags]
    assert "img" not in names
    assert not {"script", "link", "iframe"} & set(names)
    assert not any("src" in attrs or "href" in attrs for _, attrs in page.tags)
    assert [attrs["style"] for tag, attrs in page.tags if tag == "i"] == ["width:100.0%"] * 2
    assert "<h2>COST EUR</h2>" in text
    assert "<h2>CORE HOURS</h2>" in rendered("html", entries=[])


@pytest.mark.parametrize("text", ["soon", "-1h", "0d", "99999999999d"])
def test_a_window_that_cannot_be_is_a_wrong_call(text):
    result = CliRunner().invoke(main, ["report", "--since", text])
    assert result.exit_code == 2
    assert "write 7d, 36h or 90m" in result.output


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ("cpuCoreHour: -0.1\nmemoryGiBHour: 1\ncurrency: EUR", "cpuCoreHour: -0.1 is not a price"),
        ("cpuCoreHour: [", "is not YAML"),
        ("", "currency: (nothing) is not a currency"),
    ],
)
def test_a_prices_file_that_is_wrong_is_a_wrong_call(
    tmp_path: pathlib.Path, written: str, words: str
):
    path = tmp_path / "prices.yaml"
    path.write_text(written)
    result = CliRunner().invoke(main, ["report", "--prices", str(path)])
    assert result.exit_code == 2
    assert words in result.output
    gone = CliRunner().invoke(main, ["report", "--prices", str(tmp_path / "none")])
    assert "cannot be read: No such file" in gone.output


@pytest.mark.parametrize("url", ["opencost", "ftp://x", "http://", "http://a:b@x", "http://x:0"])
def test_an_address_that_cannot_be_is_a_wrong_call(url: str):
    result = CliRunner().invoke(main, ["report", "--opencost", url])
    assert result.exit_code == 2
    assert "write http://localhost:9003" in result.output


def test_opencost_is_asked_for_the_same_time():
    asked: list[dict[str, str]] = []
    one = {"cpuCost": 3.0, "cpuCoreHours": 100.0, "ramCost": 1.0, "ramByteHours": 2**30 * 100.0}

    async def allocation(request: web.Request) -> web.Response:
        asked.append(dict(request.query))
        return web.Response(text=json.dumps({"data": [{"shop": one, "__idle__": one}]}))

    async def run() -> Prices:
        async with web_server(web.get("/model/allocation", allocation)) as url:
            return await opencost_answer(f"{url}/model", NOW - WEEK, NOW)

    found = asyncio.run(run())
    assert found.idle == pytest.approx(4.0)
    assert found.rates == pytest.approx((0.03, 0.01))
    assert asked[0]["window"] == "2030-01-01T00:00:00Z,2030-01-08T00:00:00Z"
    assert (asked[0]["aggregate"], asked[0]["includeIdle"]) == ("namespace", "true")


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("slow", "did not answer within 0.05 s; try a shorter --since"),
        ("nonsense", "its answer is not a list of allocations"),
        ("moved", "/allocation: status 302); check the address"),
        ("long", "longer than 16 MiB"),
        ("refuses", "cannot be asked (Connection refused); check the address"),
    ],
)
def test_opencost_that_fails_is_a_sentence(how: str, words: str):
    async def allocation(_request: web.Request) -> web.Response:
        if how == "slow":
            await asyncio.sleep(5)
        if how == "moved":
            return web.Response(status=302, headers={"Location": "/elsewhere"})
        return web.Response(body=b" " * (17 << 20) if how == "long" else b"<html>")

    async def run() -> None:
        async with web_server(web.get("/allocation", allocation)) as url:
            seconds = 0.05 if how == "slow" else 10.0
            asked = "http://127.0.0.1:1" if how == "refuses" else url
            await opencost_answer(asked, NOW - WEEK, NOW, timeout=seconds)

    with pytest.raises(ValueError, match=r"^OpenCost at http") as raised:
        asyncio.run(run())
    assert words in str(raised.value)
