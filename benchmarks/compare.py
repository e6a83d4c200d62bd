"""Compare the libraries that follow Kubernetes resources, on the same streams; write the page.

    make numbers            # or: python -m benchmarks.compare [--quick] [--write]

Each library runs in a process of its own on one core, all of them alternately, from one server that
has made its bytes before. `runners/peers.py` has how each is used. The second table is not about
speed: a server whose first watch goes wrong (`faults.py`), and whether the program is right again.
"""

from __future__ import annotations

import argparse
import datetime as dt
import functools
import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from benchmarks.faults import FAULTS
from benchmarks.processes import LONGEST, ROOT, Cores, RunFailed, environment, run_measured, serving
from benchmarks.rounds import Sample, alternate
from benchmarks.runners.peers import PEERS

if TYPE_CHECKING:
    from collections.abc import Sequence

PAGE = ROOT / "docs" / "kubeloop" / "numbers.md"
_MIB = 1024 * 1024
_STALL_LIMIT = 240.0
_LIMIT = 90.0
_RIGHT = ["default/a", "default/c"]


def measure(peers: Sequence[str], *, quick: bool, rounds: int) -> dict[str, list[Sample]]:
    """Return the samples of each library."""
    listed, events = (1_000, 1_000) if quick else (10_000, 5_000)
    cores = Cores.of_this_machine()
    arguments = ("--listed", str(listed), "--events", str(events), "--no-bookmarks")
    with serving("benchmarks.producer", *arguments, core=cores.serving) as server:
        options = ("--url", server["url"], "--listed", str(listed), "--last", str(server["last"]))

        def run(peer: str) -> Sample:
            print(f"... {peer}", file=sys.stderr, flush=True)
            try:
                sample = run_measured(
                    "benchmarks.runners.peers", "--peer", peer, *options, core=cores.measured
                )
            except subprocess.TimeoutExpired:
                return {}
            if sample["live"] != server["live"]:
                raise RunFailed(f"{peer} knows {sample['live']} pods, not {server['live']}")
            return sample | {"rate": events / sample["wall"], "us": sample["cpu"] / events * 1e6}

        variants = {peer: functools.partial(run, peer) for peer in peers}
        return alternate(variants, rounds=rounds)


def torture(peers: Sequence[str], *, quick: bool) -> dict[tuple[str, str], str]:
    """Return what became of each library after each fault; all at once, because they only wait."""
    found: dict[tuple[str, str], str] = {}

    def judge(peer: str, fault: str) -> None:
        found[peer, fault] = _suffer(peer, fault, quick=quick)

    threads = [
        threading.Thread(target=judge, args=(peer, fault)) for peer in peers for fault in FAULTS
    ]
    for thread in threads:
        thread.start()
        time.sleep(1.0)
    for thread in threads:
        thread.join()
    return found


def _suffer(peer: str, fault: str, *, quick: bool) -> str:
    limit = _STALL_LIMIT if fault == "stall" and not quick else _LIMIT
    cores = Cores.of_this_machine()
    with serving("benchmarks.faults", "--fault", fault, core=cores.serving) as server:
        process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.runners.peers", "--peer", peer, "--url", server["url"]],
            cwd=ROOT, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        lines: list[dict[str, Any]] = []
        assert process.stdout is not None
        reader = threading.Thread(
            target=lambda: lines.extend(map(json.loads, process.stdout or ())), daemon=True
        )
        begun = time.time()
        reader.start()
        while time.time() < begun + limit and not _is_over(lines):
            time.sleep(0.2)
        process.kill()
        process.wait()
        reader.join()
    return verdict(lines, limit)


def _is_over(lines: list[dict[str, Any]]) -> bool:
    return bool(lines) and ("ended" in lines[-1] or lines[-1]["knows"] == _RIGHT)


def verdict(lines: list[dict[str, Any]], limit: float) -> str:
    """Say in a few words what the printed lines show; a fault comes a second after the first list."""
    knows = [line for line in lines if "knows" in line]
    complete = next((line["at"] for line in knows if len(line["knows"]) == 2), None)
    if complete is None:
        return "did not start"
    if knows[-1]["knows"] == _RIGHT:
        return f"right after {max(0.0, knows[-1]['at'] - complete - 1.0):.0f} s"
    last = lines[-1]
    if "ended" in last:
        return f"{last['ended']}: the program must start again"
    stale = "still believes in b" if "default/b" in knows[-1]["knows"] else "wrong"
    return f"{stale} after {limit:.0f} s, without an error"


def page(samples: dict[str, list[Sample]], faults: dict[tuple[str, str], str], load: float) -> str:
    """Return the page; in brackets, how many times the first row's figure."""
    rounds = max(map(len, samples.values()))
    first = next(iter(samples))
    median = {
        peer: {
            key: statistics.median(sample[key] for sample in found if sample)
            for key in max(found, key=len)
        }
        for peer, found in samples.items()
    }

    def row(peer: str) -> str:
        cells = [] if median[peer] else [f"not within {LONGEST:.0f} s", *[""] * 4]
        for key, shown, scale in _COLUMNS if median[peer] else ():
            value = median[peer][key]
            times = value / median[first][key]
            ratio = (
                "" if peer == first else f" ({times:.1f}x)" if times >= 0.1 else f" ({times:.3f}x)"
            )
            cells.append(shown.format(value * scale) + ratio)
        return f"| {peer} | {' | '.join(cells)} |"

    names = ("kubernetes", "kubernetes_asyncio", "kopf", "lightkube", "kr8s", "aiohttp", "msgspec")
    return _PAGE.format(
        rows="\n".join(map(row, samples)),
        faults="\n".join(
            f"| {peer} | {' | '.join(faults[peer, fault] for fault in FAULTS)} |"
            for peer in samples
        ),
        methods="\n".join(
            f"- **{peer}**: {(PEERS[peer].__doc__ or '').strip()}" for peer in samples
        ),
        versions=", ".join(f"{name} {importlib.metadata.version(name)}" for name in names),
        machine=f"{os.cpu_count()} cores, Python {platform.python_version()}",
        load=f"{load:.1f}",
        rounds=f"medians of {rounds} rounds" if rounds > 1 else "one round",
        date=dt.datetime.now(dt.UTC).date().isoformat(),
        stall=f"{_STALL_LIMIT:.0f}",
        limit=f"{_LIMIT:.0f}",
    )


_COLUMNS = (
    ("list_wall", "{:.2f} s", 1.0),
    ("list_cpu", "{:.2f} s", 1.0),
    ("list_peak", "{:.0f} MiB", 1 / _MIB),
    ("rate", "{:,.0f}", 1.0),
    ("us", "{:,.0f} us", 1.0),
)

_PAGE = """# Numbers

`make numbers` made this page on {date}: {rounds}, {machine}, load {load} from other work. {versions}.
Rates and seconds depend on the machine and its other load; CPU time and the ratios in parentheses, all of one run, depend
on them less. Measure again before you decide.

## 10 000 pods, then 5 000 changes

The pods have 6 kB as in a real cluster, nearly half of it managedFields, and are sent over plain HTTP. The first columns
measure the list, from the first request until the program knows the last pod. The others measure changes of 5 kB, sent as
fast as the program takes them, until it knows the newest.

| | to synced | CPU | peak memory | changes/s | CPU a change |
|---|---|---|---|---|---|
{rows}

## When the watch goes wrong

There are two pods, `a` and `b`. One second into the first watch, the watch fails; meanwhile `b` is deleted and `c` is
created, and from then on the server is healthy. Does the program learn that there are `a` and `c`? The limit is {limit} s, and {stall} s for a stall; every library has its own defaults.

| | the connection is reset | it ends, within a line | 410 Gone | nothing more comes, nothing ends |
|---|---|---|---|---|
{faults}

An exception is not a fault of a library that promises only a loop: the program around it has to start again, list again,
and find out what it missed. An informer does this for you.

## How each was used

{methods}

For a library without a cache, the program keeps a dictionary, as its users would. `benchmarks/runners/peers.py` has the
code, `benchmarks/faults.py` the misbehaving server, `benchmarks/requirements.txt` the versions. Corrections are welcome.
[Performance](../performance.md) has kubeloop's own figures.
"""


def main() -> None:
    """Measure; print the page, or write it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the pods")
    parser.add_argument("--write", action="store_true", help="write docs/kubeloop/numbers.md")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peers", nargs="*", default=list(PEERS), metavar="NAME")
    arguments = parser.parse_args()
    load = os.getloadavg()[0]
    faults = torture(arguments.peers, quick=arguments.quick)
    text = page(
        measure(arguments.peers, quick=arguments.quick, rounds=arguments.rounds), faults, load
    )
    if arguments.write:
        PAGE.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
