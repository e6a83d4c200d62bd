"""`elasti report`: the capacity that sleep has released, or would release, and what that costs."""

from __future__ import annotations

import datetime as dt
import pathlib
import re
from typing import TYPE_CHECKING, Any

import click

from elasti.cli.options import (
    cluster_options,
    elasti_namespace_option,
    namespace_option,
    output_option,
)
from elasti.cli.rendering import echo, render

if TYPE_CHECKING:
    from elasti.api.prices import Prices
    from elasti.cli.cluster import AccessOptions
    from elasti.cli.report_content import Report

_DAYS = re.compile(r"(\d+)d")
_OPENCOST_TIMEOUT = 30.0
_LONGEST_ANSWER = 16 << 20


def _window(text: str) -> dt.timedelta:
    from elasti.api.parsing import parse_duration

    days = _DAYS.fullmatch(text)
    try:
        seconds = int(days[1]) * 86400 if days else parse_duration(text)
        found = dt.timedelta(seconds=seconds)
    except (ValueError, OverflowError) as error:
        raise click.BadParameter(f"{text!r} is not a duration; write 7d, 36h or 90m") from error
    if found <= dt.timedelta():
        raise click.BadParameter(f"{text!r} is not in the past; write 7d, 36h or 90m")
    return found


def _by(text: str) -> str:
    if text == "namespace" or (text.startswith("label:") and text[6:]):
        return text
    raise click.BadParameter(f"{text!r} is not a grouping; write namespace or label:KEY")


def _url(text: str) -> str:
    from elasti.api.parsing import is_http_url

    if not is_http_url(text) or "?" in text:
        raise click.BadParameter(f"{text!r} is not an address; write http://localhost:9003")
    return text.rstrip("/")


def _prices(path: str) -> Prices:
    import yaml

    from elasti.api.prices import prices_of

    try:
        return prices_of(yaml.safe_load(pathlib.Path(path).read_text("utf-8")))
    except yaml.YAMLError as error:
        raise click.UsageError(f"--prices {path} is not YAML: {error}") from error
    except OSError as error:
        raise click.UsageError(f"--prices {path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise click.UsageError(f"--prices {path}: {error}") from error


@click.command("report")
@namespace_option("Only this namespace; all by default.")
@click.option(
    "--since",
    "window",
    metavar="DURATION",
    type=_window,
    help="Only this far back, such as 7d; by default everything that is counted.",
)
@click.option(
    "--observe",
    is_flag=True,
    help="Report those with spec.policy: Observe: what sleep would have released, and a verdict.",
)
@click.option(
    "--by",
    metavar="KEY",
    type=_by,
    help="A row for each namespace, or for each value of a label: label:team. The label may be on the ElastiService, its Service or its namespace; the first that has it counts.",
)
@click.option(
    "--prices",
    metavar="FILE",
    help="Show costs at the prices of a YAML file: cpuCoreHour, memoryGiBHour, currency.",
)
@click.option(
    "--opencost",
    metavar="URL",
    type=_url,
    help="Show costs at the prices that OpenCost reports for the same time: http://localhost:9003.",
)
@output_option("table", "json", "csv", "markdown", "html")
@elasti_namespace_option
@cluster_options
def command(
    *, access: AccessOptions, output: str, prices: str | None, opencost: str | None, **options: Any
) -> None:
    """Report the capacity that sleep has released, and what it costs.

    Released capacity is the target's minimum replicas times the requests of one pod, for the time without
    pods. Whether it lowers a bill depends on the nodes. The operator counts each ElastiService in its status
    from the moment it first sees it. With --since, an older ElastiService is reported by its last 20 sleeps, as
    far back as they reach, with its current requests. COUNTED FROM shows when counting began.

    \b
    Examples:
      elasti report
      elasti report --since 7d --by namespace -o markdown
      elasti report --prices prices.yaml -o html > report.html
      elasti report --observe --by label:team --opencost http://localhost:9003
    """
    from elasti.cli.running import run_to_end

    if options["observe"] and options["window"] is not None:
        raise click.UsageError("--observe reports the whole observed time; leave --since out")
    if prices is not None and opencost is not None:
        raise click.UsageError("--prices and --opencost are two sources of prices; write one")
    given = _prices(prices) if prices is not None else None
    report = run_to_end(lambda: _collect(access, prices=given, opencost=opencost, **options))
    text = render(report.to_json(), "json") if output == "json" else report.sheet().rendered(output)
    echo(text, nl=False)


async def _collect(
    access: AccessOptions,
    *,
    namespace: str | None,
    window: dt.timedelta | None,
    observe: bool,
    by: str | None,
    prices: Prices | None,
    opencost: str | None,
    elasti_namespace: str,
) -> Report:
    from elasti.api.usage import usage_row
    from elasti.cli.elastiservices import ElastiServices
    from elasti.cli.report_content import Report, observed_entry, usage_entry
    from elasti.cli.running import connected
    from elasti.dashboard.live import own_requests

    now = dt.datetime.now(dt.UTC)
    async with connected(access) as client:
        objects = ElastiServices(client, namespace or "")
        found = await (objects.labelled() if (by or "").startswith("label:") else objects.all())
        own = None if observe else await own_requests(client, elasti_namespace)
    if observe:
        found = [es for es in found if es.spec.observes]
        entries = [observed_entry(es) for es in found if es.status.observed is not None]
    else:
        rows = [(es, usage_row(es, now, window)) for es in found]
        entries = [usage_entry(es, row, now) for es, row in rows if row is not None]
    if opencost is not None and entries:
        try:
            prices = await opencost_answer(opencost, min(one.since for one in entries), now)
        except ValueError as error:
            echo(f"The report has no costs: {error}.", err=True)
    return Report(
        entries=entries,
        now=now,
        unseen=len(found) - len(entries),
        observe=observe,
        by=by or "",
        own=own,
        priced=prices is not None or opencost is not None,
        prices=prices,
    )


async def opencost_answer(
    url: str, begin: dt.datetime, end: dt.datetime, *, timeout: float = _OPENCOST_TIMEOUT
) -> Prices:
    """Ask OpenCost for the prices of a time. Raises ValueError with a sentence that names it."""
    from elasti.api.prices import opencost_prices
    from elasti.dashboard.live import message_of, read_url
    from kubeloop.http.client import AnswerTooLong
    from kubeloop.http.framing import FramingError
    from kubeloop.objects.times import format_time

    window = f"window={format_time(begin)},{format_time(end)}&aggregate=namespace&includeIdle=true"
    try:
        return opencost_prices(
            await read_url(f"{url}/allocation?{window}", timeout, _LONGEST_ANSWER)
        )
    except TimeoutError:
        why = f"it did not answer within {timeout:g} s; try a shorter --since"
    except (OSError, FramingError) as error:
        why = f"it cannot be asked ({message_of(error)}); check the address, or port-forward it"
    except (AnswerTooLong, ValueError) as error:
        why = str(error)
    raise ValueError(f"OpenCost at {url}: {why}") from None
