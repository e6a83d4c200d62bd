"""The report: what every scenario lost and held, on every environment; a page for people, and JSON.

Each run leaves a result behind (`Result`, a JSON file); the page is made from all of them, so that a
suite that ends early still has a report of what it did. The workers of one run write one report.
"""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TextIO

import msgspec

from tests.e2e.account import MOST_LAG

RESULTS, FAILURES = "results", "failures"
PAGE, DATA, PICTURE = "report.md", "report.json", "cycle.svg"
RUN = "run"


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """One scenario on one environment; times in seconds."""

    environment: str
    scenario: str
    title: str
    length: str
    verdict: str
    """`passed`, `failed`, `invalid` where the prober lagged, or why it was not played."""
    loses: bool = False
    sent: int = 0
    lost: dict[str, int] = {}
    apart: int = 0
    apart_why: str = ""
    held: int = 0
    via_resolver: int = 0
    reused: int = 0
    hold_p50: float = 0.0
    hold_p99: float = 0.0
    hold_max: float = 0.0
    answer_p50: float = 0.0
    answer_p99: float = 0.0
    lag_p99: float = 0.0
    lag_max: float = 0.0
    prober_cpu: float = 0.0
    took: float = 0.0
    notes: list[str] = []
    examples: list[str] = []


def begin(output: Path, run: str) -> None:
    """Remove an earlier run's report; of one run's workers, the first does."""
    with _locked(output) as last:
        if last.read() == run:
            return
        forget(output)
        last.seek(0)
        last.truncate()
        last.write(run)


def keep(output: Path, result: Result) -> None:
    """Write a result down, and the page again."""
    with _locked(output):
        folder = output / RESULTS
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{file_name(result)}.json").write_bytes(msgspec.json.encode(result))
        write(output)


@contextlib.contextmanager
def _locked(output: Path) -> Iterator[TextIO]:
    """Keep other workers out; the file says whose run the report is of."""
    output.mkdir(parents=True, exist_ok=True)
    with (output / RUN).open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        yield file


def file_name(result: Result) -> str:
    """Return what a result's files are called."""
    return f"{result.environment}-{result.scenario}".replace(" ", "_").replace(",", "")


def forget(output: Path) -> None:
    """Remove what an earlier suite left, so that a report shows one suite only."""
    kept = [*(output / RESULTS).glob("*.json"), *(output / FAILURES).glob("*.txt")]
    for path in (*kept, *(output / name for name in (PAGE, DATA, PICTURE))):
        path.unlink(missing_ok=True)


def write(output: Path) -> None:
    """Make the page and the JSON from the results that there are."""
    decoder = msgspec.json.Decoder(Result)
    paths = sorted((output / RESULTS).glob("*.json"), key=lambda path: path.stat().st_mtime_ns)
    results = [decoder.decode(path.read_bytes()) for path in paths]
    (output / DATA).write_bytes(msgspec.json.format(msgspec.json.encode(results), indent=1))
    (output / PAGE).write_text(page(results, picture=(output / PICTURE).exists()))


def page(results: Sequence[Result], *, picture: bool) -> str:
    """Return the page. Pure."""
    stages = dict.fromkeys(result.environment for result in results)
    parts = [_head(results)]
    if picture:
        parts.append(_PICTURE)
    for environment in stages:
        parts.append(
            f"## {environment[:1].upper()}{environment[1:]}\n\n{_table(_of(results, environment))}"
        )
    parts += [text for text in (_apart(results), _notes(results), _failures(results)) if text]
    return "\n\n".join(parts) + "\n"


def _head(results: Sequence[Result]) -> str:
    judged = [result for result in results if result.sent and not result.loses]
    sent, lost = sum(r.sent for r in judged), sum(sum(r.lost.values()) for r in judged)
    lengths = ", ".join(dict.fromkeys(result.length for result in results))
    return (
        "# What is lost when things sleep, wake and break\n\n"
        f"**{sent} requests sent, {lost} lost**, in {len(judged)} runs ({lengths} length).\n\n"
        "A prober in a process of its own sends at a fixed rate, whatever becomes of earlier requests:"
        " half over new connections, half over kept ones, GET and POST, and never again. Lost is what"
        " was refused, reset, not answered in time, answered with an error or another request's body,"
        " or executed twice, by the apps' own books. Operator and resolver run as pods from"
        " `elasti manifests`, under their own accounts and rights.\n\n"
        "*Held* are requests that waited in the resolver, with how long they did. *Late* is by how much"
        f" 99 of 100 requests were sent after their moment; beyond {MOST_LAG:.0f} s a run is invalid,"
        " since it would say more about the prober than about Elasti."
    )


_PICTURE = (
    "## One cycle\n\n"
    f"![Requests, state, slice, replicas and pods over time]({PICTURE})\n\n"
    "From the recorded events of one run: a sleeping Service, traffic, a pod, and sleep again."
)


def _of(results: Sequence[Result], environment: str) -> list[Result]:
    return [result for result in results if result.environment == environment]


def _table(results: Sequence[Result]) -> str:
    rows = [
        "| scenario | sent | lost | excluded | held | hold p50 / p99 / max | late | took | verdict |",
        "|---|--:|--:|--:|--:|--:|--:|--:|---|",
    ]
    return "\n".join([*rows, *(_row(result) for result in results)])


def _row(result: Result) -> str:
    name = f"{result.title} (`{result.scenario}`)"
    if not result.sent:
        return f"| {name} | | | | | | | | {result.verdict} |"
    hold = " / ".join(
        f"{value:.2f}" for value in (result.hold_p50, result.hold_p99, result.hold_max)
    )
    cells = [
        name,
        str(result.sent),
        _lost(result),
        str(result.apart or ""),
        str(result.held),
        f"{hold} s" if result.held else "",
        f"{result.lag_p99 * 1000:.0f} ms",
        f"{result.took:.0f} s",
        f"{result.verdict}{', and must lose' if result.loses else ''}",
    ]
    return "| " + " | ".join(cells) + " |"


def _lost(result: Result) -> str:
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(result.lost.items()))
    return f"**{kinds}**" if kinds else "0"


def _apart(results: Sequence[Result]) -> str:
    why = dict.fromkeys(result.apart_why for result in results if result.apart)
    if not why:
        return ""
    return "## Excluded\n\n" + "\n".join(f"- {text}" for text in why)


def _notes(results: Sequence[Result]) -> str:
    lines = [f"- {r.environment}, `{r.scenario}`: {note}" for r in results for note in r.notes]
    return "## Notes\n\n" + "\n".join(lines) if lines else ""


def _failures(results: Sequence[Result]) -> str:
    lines = [
        f"- {r.environment}, `{r.scenario}`: {text}"
        for r in results
        if not r.loses
        for text in r.examples
    ]
    return (
        f"## What was lost\n\nMore of each run in `{FAILURES}/`.\n\n" + "\n".join(lines)
        if lines
        else ""
    )
