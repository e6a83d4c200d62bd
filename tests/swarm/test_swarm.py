"""A seed decides everything, a few seeds pass, and what is broken on purpose is found and shrunk."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest

from elasti.api.states import State
from elasti.operator.handover.machine import HOLDS
from kubeloop.informer.gc_pause import PROCESS_GC
from tests.swarm.__main__ import Ledger
from tests.swarm.drawing import draw
from tests.swarm.faults import KINDS, Fault
from tests.swarm.loop import Process, Stuck, SwarmLoop, run
from tests.swarm.network import Network
from tests.swarm.play import SECONDS, play, shrink

_ROOT = Path(__file__).parents[2]

SLEEPY = 2
"""A seed in which a target falls asleep and is woken without any fault."""

# A crash drops a program's tasks as a kill does: what they would say at their end is not a finding.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


def test_a_seed_gives_the_same_trace_twice():
    first, second = play(6), play(6)
    assert first.faults
    assert first.requests > 10
    assert first.trace == second.trace


def test_a_seed_gives_the_same_trace_in_processes_with_other_hashes():
    code = "from tests.swarm.play import play; print(play(6).digest)"
    digests = {
        subprocess.run(
            [sys.executable, "-c", code],
            cwd=_ROOT, env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True,
        ).stdout
        for seed in ("1", "2")
    }  # fmt: skip
    assert digests == {play(6).digest + "\n"}


def test_what_an_exiting_process_has_answered_arrives():
    """However late the reader runs: its end is a FIN, not a reset."""
    read = []

    async def ask() -> None:
        reader, writer = await asyncio.open_connection("10.0.0.1", 80)
        await asyncio.sleep(5.0)
        read.append(await reader.read())
        writer.close()

    async def main(loop: SwarmLoop) -> None:
        network = loop.network = Network(loop)
        server = Process("server", "10.0.0.1")
        network.listen(server, 80, lambda _peer: _Greeter(server, network))
        await Process("client", "10.0.0.2").start(ask(), "ask")

    run(1, main)
    assert read == [b"hello"]


class _Greeter(asyncio.Protocol):
    """Answers, and its process exits at once."""

    def __init__(self, process: Process, network: Network) -> None:
        self._process, self._network = process, network

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.write(b"hello")
        self._network.end(self._process)


def test_what_goes_round_without_waiting_is_stuck():
    async def main(_loop: SwarmLoop) -> None:
        while True:  # noqa: ASYNC110 -- to spin is what is tested
            await asyncio.sleep(0)

    with pytest.raises(Stuck, match="it spins"):
        run(1, main)


def test_killed_programs_do_not_freeze_the_collector(monkeypatch: pytest.MonkeyPatch):
    control = mock.Mock(wraps=gc)
    monkeypatch.setattr(PROCESS_GC, "_control", control)
    assert any("operator is replaced" in fault.kind for fault in play(6).faults)
    assert control.freeze.mock_calls == control.disable.mock_calls == []


def test_another_seed_gives_another_trace():
    assert play(SLEEPY, []).digest != play(SLEEPY + 1, []).digest


@pytest.mark.parametrize("seed", range(3, 5))
def test_a_seed_breaks_nothing(seed: int):
    assert play(seed).problems == ()


def test_every_kind_of_fault_can_be_played():
    faults = [Fault(3.0 + 2 * n, kind, n, 0.5) for n, kind in enumerate(KINDS)]
    assert len(play(SLEEPY, faults).trace) > 100


def test_faults_are_drawn_by_the_seed_alone():
    assert draw(7, SECONDS) == draw(7, SECONDS)
    assert {fault.kind for seed in range(500) for fault in draw(seed, SECONDS)} == set(KINDS)


def test_a_sleep_without_a_resolver_is_found_and_shrunk(monkeypatch: pytest.MonkeyPatch):
    broken = {**HOLDS, State.PROXY: HOLDS[State.SERVE]}
    monkeypatch.setattr("elasti.operator.handover.plan.HOLDS", broken)
    faults = [Fault(90.0, "a person edits a cooldown", 0, 0.9)]
    outcome = play(SLEEPY, faults)
    assert any("the node knows no endpoint" in problem for problem in outcome.problems)
    assert shrink(outcome).faults == ()


def test_a_ledger_resumes_and_belongs_to_its_source(tmp_path: Path):
    path = tmp_path / "ledger"
    Ledger(path).note(play(SLEEPY, []), 1.0)
    assert Ledger(path).played == {SLEEPY}
    path.write_text("# source other\n5 passed x 1 1.0\n")
    assert Ledger(path).played == set()
    assert (tmp_path / "ledger.other").exists()
