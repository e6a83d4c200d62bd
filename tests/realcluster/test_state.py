"""Who owns a cluster's directory, and what it reports."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hack.realcluster.state import Place, State, is_owned, try_lock
from tests.realcluster.report import Report, WakeUp, percentile


def test_a_report_comes_back_as_it_was_written(tmp_path: Path) -> None:
    assert State.read(tmp_path) is None
    state = State(owner=7, nodes=1, proxy="nftables", places=[Place("node-1", 8, "10.202.0.11")])
    state.write(tmp_path)
    assert State.read(tmp_path) == state
    assert state.place("node-1").pid == 8
    with pytest.raises(KeyError, match="node-1"):
        state.place("node-2")


def test_a_directory_is_owned_while_a_process_holds_the_lock(tmp_path: Path) -> None:
    assert not is_owned(tmp_path)
    lock = try_lock(tmp_path)
    assert lock is not None
    assert try_lock(tmp_path) is None
    heir = subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=[lock]
    )
    os.close(lock)
    assert is_owned(tmp_path)
    heir.kill()
    heir.communicate()
    assert not is_owned(tmp_path)


def test_the_report_shows_what_elasti_adds() -> None:
    report = Report()
    report.note("up", "17 s")
    report.wake_ups[5] = [
        WakeUp(0.1, 0.1, 0.6, 0.7, 0.7 + added, ready=5.0) for added in (0.01, 0.02, 0.09)
    ]
    text = report.text()
    assert "| up | 17 s |" in text
    assert "| 3 | 0.10 | 0.10 | 0.60 | 0.70 | 0.79 | 5.00 | 90 |" in text
    assert "Readiness period 5 s: release p50 20 ms, p99 90 ms of 3" in text
    assert "720 ms (+20)" in text


def test_a_percentile_is_one_of_the_values() -> None:
    assert percentile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert percentile([3.0, 1.0, 2.0], 0.99) == 3.0
    assert percentile([4.0], 0.01) == 4.0
