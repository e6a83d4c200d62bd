"""The operator with many ElastiServices: watches, restart, memory, rest, triggers, wake-ups, writes.

Figures name the server they were taken with: the dev cluster's own, which is Python and needs a good
part of the two cores itself, or a kube-apiserver with etcd where this machine has them. Processor time
is the operator's alone.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from benchmarks.operator_places import why_not_real
from benchmarks.processes import run_measured
from benchmarks.report import Figure, at_most, times_at_most

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.suites import Settings

RESYNC = 300.0
"""How often, by default, every object is handed to the handlers again."""
_FULL = ("--sizes", "1,100,1000,5000", "--idle", "20", "--kill")
_QUICK = ("--sizes", "1,100", "--idle", "3", "--wakes", "20", "--polling", "1.5", "--calm", "1")
_REAL = "kube-apiserver"
_LONGEST = 3600.0


def run(settings: Settings) -> list[Figure]:
    """Measure on the dev cluster's server, and on a real one where there is one."""
    figures = list(figures_of(_measure(settings, "dev")))
    if settings.quick:
        return figures
    if (missing := why_not_real()) is not None:
        print(f"no figures with a {_REAL}: {missing}", file=sys.stderr)
        return figures
    return [*figures, *figures_of(_measure(settings, "real"))]


def _measure(settings: Settings, place: str) -> dict[str, Any]:
    return run_measured(
        "benchmarks.runners.operator",
        *("--place", place),
        *("--core", str(settings.cores.measured), "--serving", str(settings.cores.serving)),
        *(_QUICK if settings.quick else _FULL),
        core=settings.cores.serving,
        longest=_LONGEST,
    )


def figures_of(sample: dict[str, Any]) -> Iterator[Figure]:
    """Turn what a run printed into figures."""
    place, sizes = sample["place"], sample["sizes"]
    few, many = sizes[0], sizes[-1]
    yield from _watches(place, sizes)
    yield from _rest_with_few(place, few)
    yield from _start(place, few, many)
    yield from _rest(place, many)
    yield from _wakes(place, many)
    yield from _new_resolver(place, many)
    yield from _writes(place, many)
    yield from _growth(place, sizes)


def _watches(place: str, sizes: list[dict[str, Any]]) -> Iterator[Figure]:
    for size in sizes:
        yield Figure(
            f"operator, watches with {size['size']:,} ElastiServices ({place})",
            [size["watches"]],
            "",
            reference=sizes[0]["watches"],
            goal=at_most(9),
        )
    yield Figure(
        f"operator, watches with {sizes[-1]['size']:,} to those with one ({place})",
        [sizes[-1]["watches"]],
        "",
        reference=sizes[0]["watches"],
        goal=times_at_most(1),
    )


def _rest_with_few(place: str, few: dict[str, Any]) -> Iterator[Figure]:
    name = f"operator, {few['size']} ElastiService"
    yield Figure(f"{name}, memory ({place})", [few["peak"]], "MiB", goal=at_most(80))
    yield Figure(f"{name}, idle CPU ({place})", [few["idle"]["cpu"] * 100], "%", goal=at_most(1))


def _start(place: str, few: dict[str, Any], many: dict[str, Any]) -> Iterator[Figure]:
    name, restarted = _name(many), many["restarted"]
    base = few["restarted"]
    yield Figure(
        f"{name}, restart to settled ({place})",
        [max(restarted["wall"], restarted["ready"])],
        "s",
        goal=at_most(60),
        note=f"ready after {restarted['ready']:.1f} s",
    )
    yield Figure(f"{name}, restart, CPU ({place})", [restarted["cpu"]], "s")
    if "killed" in many:
        killed = many["killed"]
        yield Figure(
            f"{name}, start after a kill, the lease waited out ({place})",
            [max(killed["wall"], killed["ready"])],
            "s",
            goal=at_most(60),
        )
    yield Figure(f"{name}, adopting those that are new ({place})", [many["adopted"]["wall"]], "s")
    yield Figure(f"{name}, adopting, CPU ({place})", [many["adopted"]["cpu"]], "s")
    yield Figure(
        f"{name}, resolver probes at once after a restart ({place})",
        [restarted["most_probes_at_once"]],
        "",
        goal=at_most(16),
    )
    yield Figure(f"{name}, peak memory ({place})", [many["peak"]], "MiB", goal=at_most(250))
    each = (many["peak"] - few["peak"]) * 1024 / (many["size"] - few["size"])
    yield Figure(f"{name}, memory of each ({place})", [each], "KiB")
    spent = (restarted["cpu"] - base["cpu"]) * 1000 / (many["size"] - few["size"])
    yield Figure(f"{name}, restart, CPU of each ({place})", [spent], "ms")


def _rest(place: str, many: dict[str, Any]) -> Iterator[Figure]:
    name, resynced, idle = _name(many), many["resynced"], many["idle"]["cpu"]
    resync = max(resynced["cpu"] - idle, 0.0) * resynced["seconds"]
    share = 100 * resync / RESYNC
    yield Figure(
        f"{name}, idle CPU without triggers ({place})",
        [idle * 100 + share],
        "%",
        goal=at_most(2),
        note=f"{share:.2f} of it a resync every {RESYNC:g} s",
    )
    triggers = many["triggers"]
    yield Figure(
        f"{name}, CPU with a Prometheus trigger each ({place})",
        [triggers["cpu"] * 100 + share],
        "%",
        goal=at_most(15),
        note=f"{triggers['distinct_queries']:,} different queries a round",
    )


def _wakes(place: str, many: dict[str, Any]) -> Iterator[Figure]:
    rounds = many["woken"]
    asked = len(rounds[0]["answered"])
    missing = sum(len(one["answered"]) - len(one["written"]) for one in rounds)
    yield Figure(
        f"{_name(many)}, {asked} wake-ups at once, p95 to /scale written ({place})",
        [_p95(one["written"]) * 1000 for one in rounds],
        "ms",
        # A server in Python takes longer for the writes alone.
        goal=at_most(250) if place == _REAL else None,
    )
    yield Figure(
        f"{_name(many)}, wake-ups that wrote nothing ({place})", [missing], "", goal=at_most(0)
    )


def _new_resolver(place: str, many: dict[str, Any]) -> Iterator[Figure]:
    found = many["resolver replaced"]
    seconds, listed = found["seconds"], found["listed"]
    yield Figure(
        f"{_name(many)}, another resolver listed everywhere after ({place})",
        [seconds],
        "s",
        note=f"{listed:,} writes, {listed / max(seconds, 0.001):.0f}/s, {found['cpu']:.1f} s of CPU,"
        f" {found['most_probes_at_once']} probes at once",
    )
    yield Figure(
        f"{_name(many)}, wake-ups meanwhile, p95 to /scale written ({place})",
        [_p95(found["woken"]["written"]) * 1000],
        "ms",
    )


def _writes(place: str, many: dict[str, Any]) -> Iterator[Figure]:
    """The writes of reconciles that had nothing to change; the lease's own are not among them."""
    phases = {
        "after a restart": "restarted",
        "after a restart with triggers": "restarted with triggers",
        "at rest": "idle",
        "of every object touched": "touched",
        "of a resync": "resynced",
        "of rounds of triggers": "triggers",
    }
    for words, phase in phases.items():
        found = many[phase]["writes"]
        yield Figure(
            f"{_name(many)}, writes {words} ({place})",
            [sum(found.values())],
            "",
            goal=at_most(0),
            note=", ".join(f"{count} {what}" for what, count in found.items()),
        )


def _growth(place: str, sizes: list[dict[str, Any]]) -> Iterator[Figure]:
    """What each one more costs at the largest size, to what it costs one size before."""
    if len(sizes) < 3:
        return
    first, before, last = sizes[0], sizes[-2], sizes[-1]
    for words, unit, read in (
        ("CPU of a restart", "ms", lambda size: size["restarted"]["cpu"] * 1000),
        ("memory", "KiB", lambda size: size["peak"] * 1024),
    ):
        small = (read(before) - read(first)) / (before["size"] - first["size"])
        large = (read(last) - read(first)) / (last["size"] - first["size"])
        yield Figure(
            f"operator, {words} of each, {last['size']:,} to {before['size']:,} ({place})",
            [large],
            unit,
            reference=small,
            goal=times_at_most(1.5),
        )


def _name(size: dict[str, Any]) -> str:
    return f"operator, {size['size']:,} ElastiServices"


def _p95(values: list[float]) -> float:
    ordered = sorted(values)
    return ordered[int(len(ordered) * 0.95)] if ordered else float("inf")
