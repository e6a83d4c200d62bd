"""CI's second run of what failed (.ci/retry): a disturbed test passes and is named, a broken one fails."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

RETRY = Path(__file__).parents[2] / ".ci" / "retry"
SUITE = """
import os, pathlib, pytest

def test_fine(): pass

@pytest.mark.parametrize("n", range(int(os.environ.get("BROKEN", "0"))))
def test_broken(n): raise ValueError

def test_disturbed():
    seen = pathlib.Path("seen")
    is_alone = seen.exists() and "PYTEST_XDIST_WORKER" not in os.environ
    seen.touch()
    assert is_alone
"""
PYTEST = [sys.executable, "-m", "pytest", "-q", "-p", "xdist.plugin", "--numprocesses=2"]


def retried(directory: Path, *, broken: int = 0) -> tuple[int, str]:
    (directory / "pytest.ini").write_text("[pytest]\n")
    (directory / "test_it.py").write_text(SUITE)
    done = subprocess.run(
        [sys.executable, RETRY, *PYTEST, "--dist=worksteal", "test_it.py"],
        check=False,
        capture_output=True,
        text=True,
        cwd=directory,
        env={
            "BROKEN": str(broken),
            "RETRY_HISTORY": str(directory / "history" / "runs.json"),
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # half of the time that a process takes
        },
    )
    return done.returncode, done.stdout


def test_what_passes_alone_is_named_and_does_not_fail_the_run(tmp_path: Path):
    code, said = retried(tmp_path)
    assert code == 0, said
    assert "!!! failed, then passed:\n!!!   test_it.py::test_disturbed" in said


def test_what_fails_twice_fails_the_run(tmp_path: Path):
    code, said = retried(tmp_path, broken=1)
    assert code == 1, said
    assert "!!! failed, then passed:\n!!!   test_it.py::test_disturbed" in said
    assert said.endswith("!!! failed twice:\n!!!   test_it.py::test_broken[0]\n")


def test_many_failures_are_not_tried_again(tmp_path: Path):
    code, said = retried(tmp_path, broken=10)
    assert code == 1, said
    assert "11 tests failed, too many to try again" in said


def test_a_test_that_needs_a_second_try_again_fails_the_run(tmp_path: Path):
    assert retried(tmp_path)[0] == 0
    code, said = retried(tmp_path)
    assert code == 1, said
    assert said.endswith("5 runs: mend them:\n!!!   test_it.py::test_disturbed\n")
