from __future__ import annotations

import os
import subprocess
import sys

import pytest

from benchmarks.processes import ROOT, Cores, RunFailed, run_measured, serving
from benchmarks.rounds import alternate, values
from benchmarks.suites import SUITES, load


def test_rounds_alternate_the_order() -> None:
    order: list[str] = []

    def variant(name: str):
        def run() -> dict[str, float]:
            order.append(name)
            return {"n": float(len(order))}

        return run

    samples = alternate({name: variant(name) for name in "abc"}, rounds=3)

    assert "".join(order) == "abccbaabc"
    assert values(samples["a"], "n") == [1.0, 6.0, 7.0]


@pytest.mark.parametrize("name", SUITES)
def test_every_suite_can_be_loaded(name: str) -> None:
    assert callable(load(name))


def test_an_unknown_name_is_reported_with_the_known_ones() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "nonsense"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 2
    assert "nonsense" in done.stderr
    assert SUITES[0] in done.stderr


def test_cores_are_ones_that_may_be_used() -> None:
    cores = Cores.of_this_machine()

    assert {cores.measured, cores.serving} <= os.sched_getaffinity(0)


def test_a_run_that_fails_is_an_error() -> None:
    with pytest.raises(RunFailed, match="nowhere"):
        run_measured("benchmarks.runners.nowhere", core=Cores.of_this_machine().measured)


@pytest.mark.slow
@pytest.mark.parametrize("tls", [False, True])
def test_an_informer_reads_the_producers_whole_stream(tls: bool) -> None:
    cores = Cores.of_this_machine()
    arguments = ["--events", "600", "--listed", "100", *(["--tls"] if tls else [])]
    with serving("benchmarks.producer", *arguments, core=cores.serving) as server:
        for mode in ("stream", "whole"):
            sample = run_measured(
                "benchmarks.runners.informer",
                *("--url", server["url"], "--ca", server["ca"], "--variant", "lazy-dict"),
                *("--changes", str(server["changes"]), "--mode", mode),
                core=cores.measured,
            )

            assert sample["live"] == server["live"]
