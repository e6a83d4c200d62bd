"""Puts known bugs back, one at a time, and says what finds each: the model, or the swarm by how many seeds.

    python -m tests.swarm.mutants                    # every patch of mutants/
    python -m tests.swarm.mutants lost-wake-up       # one

Each patch is applied to a copy of the source, which runs in a process of its own. One that no longer applies fails.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

_ROOT = Path(__file__).parents[2]
MUTANTS = Path(__file__).parent / "mutants"
_PACKAGES = ("packages/kubeloop/src", "packages/elasti/src")
# What CI plays: found by the model, or within a few seeds.
FEW = (
    "connection-counted-late",
    "engaged-before-nodes-know",
    "lost-wake-up",
    "new-port-opened-late",
    "port-owner-changes-at-once",
)


def names() -> list[str]:
    """Return the names of all mutants."""
    return sorted(path.stem for path in MUTANTS.glob("*.patch"))


def copy_with(patch: Path, into: Path) -> None:
    """Copy the source and put one bug back. Raises CalledProcessError if it does not apply."""
    for place in _PACKAGES:
        shutil.copytree(_ROOT / place, into / place, ignore=shutil.ignore_patterns("__pycache__"))
    subprocess.run(
        ["patch", "--strip=1", "--silent", f"--input={patch}"],
        cwd=into, check=True, capture_output=True, text=True,
    )  # fmt: skip


def finds(copy: Path, *command: str) -> str | None:
    """Run a search on a copy; returns what it printed if it found something."""
    path = os.pathsep.join(str(copy / place) for place in _PACKAGES)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([path, str(_ROOT)])}
    done = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=_ROOT, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode and "Traceback" in done.stderr and " breaks:" not in done.stdout:
        raise RuntimeError(f"{' '.join(command)} could not be run: {done.stderr}")
    return (done.stdout + done.stderr) if done.returncode else None


def hunt(name: str, *, seeds: int, depth: int, seconds: float) -> str:
    """Return what finds a mutant, in a few words; empty if nothing does."""
    with tempfile.TemporaryDirectory() as directory:
        copy = Path(directory)
        copy_with(MUTANTS / f"{name}.patch", copy)
        if told := finds(copy, "tests.model.search", "--depth", str(depth), "--faults", "2"):
            return f"model: {told.splitlines()[0][:80]}"
        bounds = ("--seeds", str(seeds), "--seconds", str(seconds), "--no-ledger", "--no-shrink")
        if told := finds(copy, "tests.swarm", *bounds):
            lines = told.splitlines()
            what = lines[1].strip() if len(lines) > 1 else ""
            return f"swarm: {lines[0]} {what[:80]}"
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("names", nargs="*", help="mutants to hunt; by default all")
    parser.add_argument("--few", action="store_true", help="those that CI plays")
    parser.add_argument("--seeds", type=int, default=500)
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument(
        "--seconds", type=float, default=float("inf"), help="of the swarm, for each"
    )
    chosen = parser.parse_args()
    missed = []
    for name in chosen.names or (FEW if chosen.few else names()):
        began = time.monotonic()
        found = hunt(name, seeds=chosen.seeds, depth=chosen.depth, seconds=chosen.seconds)
        print(f"{name}: {found or 'NOT FOUND'} ({time.monotonic() - began:.0f} s)", flush=True)
        missed += [] if found else [name]
    print(f"not found: {', '.join(missed) or 'none'}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
