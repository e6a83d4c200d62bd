from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from benchmarks.operator_ledger import (
    COMPLETE,
    RECEIVED,
    STARTED,
    Clerk,
    Ledger,
    kinds,
    requests,
    scaled,
    watches,
    writes,
)
from benchmarks.operator_neighbours import COMMANDS, Counts, obey
from benchmarks.operator_objects import Population, concurrently, name_of
from benchmarks.processes import Cores, run_measured
from benchmarks.suites.operator import figures_of


def note(clerk: Clerk, stage: str, verb: str, resource: str, name: str = "", code: int = 0) -> None:
    resource, _, subresource = resource.partition("/")
    clerk.note(
        stage,
        verb,
        resource=resource,
        subresource=subresource,
        namespace="shop",
        name=name,
        code=code,
    )


def test_a_ledger_counts_what_the_server_noted(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    ledger = Ledger(path)
    assert ledger.news() == []
    with path.open("wb") as file:
        clerk = Clerk(file)
        note(clerk, RECEIVED, "watch", "services")
        note(clerk, STARTED, "watch", "services")
        note(clerk, RECEIVED, "update", "leases", "lease")
        note(clerk, RECEIVED, "update", "deployments/scale", "web")
        note(clerk, COMPLETE, "update", "deployments/scale", "web", 200)
        note(clerk, COMPLETE, "update", "deployments/scale", "late", 409)
    found = ledger.news()

    assert (watches(found), requests(found)) == (1, 2)
    assert kinds(writes(found)) == {"update deployments/scale": 1}
    assert set(scaled(found)) == {("shop", "web")}
    assert ledger.news() == []


def test_a_line_that_is_half_written_is_read_later(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    with path.open("wb") as file:
        note(Clerk(file), RECEIVED, "get", "services")
    whole = path.read_bytes()
    ledger = Ledger(path)
    path.write_bytes(whole[:20])
    assert ledger.news() == []
    path.write_bytes(whole)

    assert [entry.verb for entry in ledger.news()] == ["get"]


def test_one_in_twenty_is_awake() -> None:
    names = [name_of(number) for number in range(200)]

    assert sum(name.awake for name in names) == 10
    assert len(set(names)) == 200


def test_chains_stay_in_their_namespace_and_share_nothing() -> None:
    unused: Any = None
    population = Population(unused)
    population.names = [name_of(number) for number in range(600)]
    chains = population.chains()
    names = [name for chain in chains for name in chain]

    assert len(names) == len(set(names)) > 400
    assert all(len({name.namespace for name in chain}) == 1 for chain in chains)
    assert not any(name.awake for name in names)


async def test_every_item_is_worked_on_once() -> None:
    done: list[int] = []

    async def work(item: int) -> None:
        await asyncio.sleep(0)
        done.append(item)

    await concurrently(range(100), work)

    assert sorted(done) == list(range(100))


async def test_counts_begin_again_when_they_are_taken() -> None:
    counts = Counts()
    counts.queries += ["a", "a", "b"]

    taken = await obey(counts, {"do": "counts"})

    assert (taken["queries"], taken["distinct_queries"]) == (3, 2)
    assert (await obey(counts, {"do": "counts"}))["queries"] == 0


async def test_an_unknown_command_is_refused() -> None:
    with pytest.raises(ValueError, match="nonsense"):
        await obey(Counts(), {"do": "nonsense"})
    assert "wake" in COMMANDS


def size_of(size: int, **more: Any) -> dict[str, Any]:
    start = {"wall": 1.0, "ready": 0.5, "cpu": size / 1000, "writes": {}, "most_probes_at_once": 4}
    rest = {"cpu": 0.001, "writes": {}}
    return {
        "size": size,
        "watches": 6,
        "peak": 60 + size / 50,
        "adopted": start,
        "restarted": start,
        "idle": rest,
        **more,
    }


def sample_of(place: str, *, written: dict[str, int]) -> dict[str, Any]:
    rest = {"cpu": 0.001, "writes": {}}
    last = size_of(
        5000,
        touched={"writes": written},
        resynced=rest | {"seconds": 40.0, "cpu": 0.05},
        triggers=rest | {"cpu": 0.04, "distinct_queries": 5001},
        woken=[{"answered": [0.2] * 100, "written": [0.1] * 99 + [0.9]}],
        **{
            "restarted with triggers": {"writes": {}},
            "resolver replaced": {
                "cpu": 9.0,
                "listed": 4750,
                "seconds": 20.0,
                "woken": {"written": [0.1] * 100},
                "most_probes_at_once": 16,
            },
        },
    )
    return {"place": place, "sizes": [size_of(1), size_of(1000), last]}


@pytest.mark.parametrize("place", ["dev server", "kube-apiserver"])
def test_a_run_that_wrote_nothing_meets_every_goal(place: str) -> None:
    figures = list(figures_of(sample_of(place, written={})))

    assert all(place in figure.name for figure in figures)
    assert not [figure.name for figure in figures if figure.ok is False]


def test_one_write_too_many_misses_the_goal_and_is_named() -> None:
    sample = sample_of("dev server", written={"patch elastiservices/status": 1})
    (missed,) = [figure for figure in figures_of(sample) if figure.ok is False]

    assert "touched" in missed.name
    assert missed.note == "1 patch elastiservices/status"


def test_a_scale_that_was_never_written_misses_the_goal() -> None:
    sample = sample_of("dev server", written={})
    sample["sizes"][-1]["woken"][0]["written"].pop()

    assert [figure.name for figure in figures_of(sample) if figure.ok is False] == [
        "operator, 5,000 ElastiServices, wake-ups that wrote nothing (dev server)"
    ]


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_an_operator_goes_through_every_phase_with_few_objects() -> None:
    cores = Cores.of_this_machine()
    sample = run_measured(
        "benchmarks.runners.operator",
        *("--core", str(cores.measured), "--serving", str(cores.serving)),
        *("--sizes", "10", "--idle", "1", "--wakes", "2", "--polling", "1", "--calm", "0.5"),
        core=cores.serving,
    )
    (last,) = sample["sizes"]

    assert last["watches"] < 10
    assert last["adopted"]["writes"]["create services"] == 10
    assert [last[phase]["writes"] for phase in ("restarted", "touched", "resynced")] == [{}, {}, {}]
    assert all(len(one["written"]) == 2 and one["codes"] == [202] for one in last["woken"])
    assert last["triggers"]["distinct_queries"] == 11
    replaced = last["resolver replaced"]
    assert replaced["listed"] >= 9
    assert len(replaced["woken"]["written"]) == 2


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_chains_are_compared_with_the_same_population_alone() -> None:
    cores = Cores.of_this_machine()
    sample = run_measured(
        "benchmarks.runners.operator",
        *("--core", str(cores.measured), "--serving", str(cores.serving), "--chains"),
        *("--sizes", "106", "--idle", "1", "--wakes", "2", "--polling", "1", "--calm", "0.5"),
        core=cores.serving,
    )
    (size,) = sample["sizes"]
    alone, joined = size["alone"], size["in chains"]

    assert (alone["written"], joined["written"]) == (2, 2)
    assert alone["watches"] == joined["watches"]
