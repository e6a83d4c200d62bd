"""Processes on cores of their own."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ROOT = Path(__file__).resolve().parent.parent
_OTHER_PYTHON = ROOT / "build" / "bench-venv" / "bin" / "python"
LONGEST = 600.0


class RunFailed(RuntimeError):
    """A measured process did not end well."""


@dataclass(frozen=True, slots=True)
class Cores:
    """Which core runs what is measured, and which what serves it; the same one if there is one."""

    measured: int
    serving: int

    @classmethod
    def of_this_machine(cls) -> Cores:
        """Take the first and the last core that this process may use."""
        usable = sorted(os.sched_getaffinity(0))
        return cls(usable[0], usable[-1])


def run_measured(
    module: str,
    *arguments: str,
    core: int,
    python: str = sys.executable,
    longest: float = LONGEST,
) -> dict[str, Any]:
    """Run a module to its end on one core; return the JSON object it printed last."""
    with _start(python, module, arguments, core) as process:
        try:
            output, _ = process.communicate(timeout=longest)
        except BaseException:
            process.kill()
            raise
    if process.returncode:
        raise RunFailed(f"{module} {' '.join(arguments)} ended with {process.returncode}")
    result: dict[str, Any] = json.loads(output.splitlines()[-1])
    return result


@contextlib.contextmanager
def serving(module: str, *arguments: str, core: int) -> Iterator[dict[str, Any]]:
    """Run a module that serves, on one core; yields the JSON object that says it is ready."""
    with _start(sys.executable, module, arguments, core) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            if not line:
                raise RunFailed(f"{module} {' '.join(arguments)} did not start")
            yield json.loads(line)
        finally:
            # Servers end when their standard input does, so none outlives a killed benchmark.
            process.stdin.close()
            process.wait(timeout=30)


def _start(
    python: str, module: str, arguments: Sequence[str], core: int
) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [python, "-m", module, *arguments],
        cwd=ROOT,
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    os.sched_setaffinity(process.pid, {core})
    return process


def environment() -> dict[str, str]:
    """Return what measured processes see: compiled modules, whatever the caller's settings."""
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    return {
        **inherited,
        "PYTHONPATH": os.pathsep.join(
            (
                str(ROOT),
                *(
                    str(folder)
                    for name in ("kubeloop", "devkube", "elasti")
                    # Some benchmarks use what the packages' tests use, such as a gRPC server.
                    for folder in (ROOT / "packages" / name / "src", ROOT / "packages" / name)
                ),
            )
        ),
        "PYTHONHASHSEED": "0",
        "PYTHONPYCACHEPREFIX": str(ROOT / "build" / "pycache"),
    }


def python_with(package: str) -> str:
    """Return an interpreter that has a reference package: this one, or build/bench-venv's.

    Raises RunFailed where none has: a goal without its reference is not measured.
    """
    for python in (sys.executable, str(_OTHER_PYTHON)):
        if Path(python).exists() and _has(python, package):
            return python
    raise RunFailed(f"{package}, to compare with, is not installed; make bench installs it")


def _has(python: str, package: str) -> bool:
    check = [
        python,
        "-c",
        f"import importlib.util as u; raise SystemExit(not u.find_spec({package!r}))",
    ]
    return subprocess.run(check, check=False, cwd=ROOT).returncode == 0
