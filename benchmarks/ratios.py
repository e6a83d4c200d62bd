"""Ratios that hold on any machine, against those that are committed: `make bench-quick`.

Each is processor time of ours by a reference's in the same run, in alternating rounds; the median
of the rounds counts. Lower is better. One that is worse than benchmarks/baseline.json by more than a quarter
fails the run, and so does a reference that is missing. `--write` makes the baseline again.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import shutil
import statistics
import sys
from typing import TYPE_CHECKING

import msgspec

from benchmarks.processes import ROOT, Cores, RunFailed
from benchmarks.resolver_hotpath import HEADS, wrk
from benchmarks.resolver_servers import CLOSING, PROXIES, available, backend
from benchmarks.rounds import Sample, alternate, values
from benchmarks.suites import Settings, watch

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from benchmarks.resolver_servers import Server

_BASELINE = ROOT / "benchmarks" / "baseline.json"
_WORSE = 1.25
_ROUNDS = 5
# A round of a Host alone, whose rows are the oldest, and one of other heads.
_SECONDS, _SECONDS_OF_HEADS = 2, 1


def ratios(settings: Settings) -> Iterator[tuple[str, list[float]]]:
    """Yield the name of each and its rounds. Raises RunFailed where a reference is missing."""
    if missing := [name for name in ("nginx", "wrk") if shutil.which(name) is None]:
        raise RunFailed(f"not installed: {', '.join(missing)}")
    if "go" not in available():
        raise RunFailed("there is no Go to build the reference proxy with")
    cores = settings.cores
    with contextlib.ExitStack() as stack:
        pod = stack.enter_context(backend(cores.serving))
        for mode, made, names in (
            ("kept connections", PROXIES, ("nginx", "go", "ours")),
            ("one request a connection", CLOSING, ("nginx", "ours")),
        ):
            proxies = {
                name: stack.enter_context(made[name](cores.measured, pod.port)) for name in names
            }
            samples = _requests(proxies, settings)
            for reference in names[:-1]:
                yield f"CPU a request to {reference}'s, {mode}", _by(samples, "ours", reference)
            both = {name: proxies[name] for name in ("nginx", "ours")}
            for head in HEADS:
                samples = _requests(both, settings, head)
                yield f"CPU a request to nginx's, {mode}, {head}", _by(samples, "ours", "nginx")
    samples = watch.beside_official(settings, rounds=_ROUNDS)
    for variant in ("slim", "lazy-dict"):
        name = f"CPU a watch event to the official client's, {watch.NAMES[variant]}"
        yield name, _by(samples, variant, "official")


def _requests(
    proxies: Mapping[str, Server], settings: Settings, head: str = ""
) -> dict[str, list[Sample]]:
    seconds = _SECONDS_OF_HEADS if head else _SECONDS
    variants = {
        name: functools.partial(wrk, server, settings.cores.serving, seconds, head=head)
        for name, server in proxies.items()
    }
    if not head:
        alternate(variants, rounds=1)
    return alternate(variants, rounds=_ROUNDS)


def _by(samples: Mapping[str, list[Sample]], ours: str, reference: str) -> list[float]:
    """Return the ratio of each round: what is next to each other in time is compared."""
    pairs = zip(values(samples[ours], "cpu"), values(samples[reference], "cpu"), strict=True)
    return [ours / theirs for ours, theirs in pairs]


def main() -> int:
    """Measure, print a table, compare; exit status 1 where a ratio is worse."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ratios", description=__doc__)
    parser.add_argument("--write", action="store_true", help="write benchmarks/baseline.json")
    is_written = parser.parse_args().write
    settings = Settings(quick=True, cores=Cores.of_this_machine())
    baseline = msgspec.json.decode(_BASELINE.read_bytes(), type=dict[str, float])
    found: dict[str, float] = {}
    worse = False
    print(f"{'ratio':70} {'now':>7} {'rounds':>15} {'baseline':>9}")
    for name, rounds in ratios(settings):
        found[name] = now = float(f"{statistics.median(rounds):.3g}")
        before = baseline.get(name)
        is_worse = before is None or now > before * _WORSE
        worse = worse or is_worse
        spread = f"{min(rounds):.3g}-{max(rounds):.3g}"
        verdict = "WORSE" if is_worse else "ok"
        print(f"{name:70} {now:7.3g} {spread:>15} {before or 0:9.3g} {verdict}", flush=True)
    if is_written:
        _BASELINE.write_bytes(msgspec.json.format(msgspec.json.encode(found)) + b"\n")
    return 0 if is_written else int(worse)


if __name__ == "__main__":
    sys.exit(main())
