"""Plays seeds: `python -m tests.swarm --seeds 100`, or one of them again: `--seed 17`.

Seeds that were played stand in a ledger, one line each; the next run goes on after them. A ledger belongs to
the state of the source that it was made with: its first line has a fingerprint of it.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import time
from pathlib import Path

from tests.swarm.play import Outcome, no_cleanup, play, shrink

_ROOT = Path(__file__).parents[2]
LEDGER = _ROOT / "build" / "swarm" / "ledger"


def fingerprint() -> str:
    """Return what identifies the source that is played, and the swarm itself."""
    digest = hashlib.sha256()
    for place in ("packages/kubeloop/src", "packages/elasti/src", "tests/swarm"):
        for path in sorted((_ROOT / place).rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


class Ledger:
    """Which seeds were played, with what."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        head = f"# source {fingerprint()}"
        lines = path.read_text().splitlines() if path.exists() else []
        if lines[:1] != [head]:
            if lines:
                path.rename(path.with_suffix(f".{lines[0].split()[-1]}"))
            path.write_text(head + "\n")
            lines = []
        self.played = {int(line.split()[0]) for line in lines[1:]}

    def note(self, outcome: Outcome, seconds: float) -> None:
        """Write a run down."""
        result = "failed" if outcome.problems else "passed"
        line = f"{outcome.seed} {result} {outcome.digest} {outcome.requests} {seconds:.2f}\n"
        with self._path.open("a") as file:
            file.write(line)
        self.played.add(outcome.seed)


def report(outcome: Outcome) -> None:
    """Print a failure: what broke, by which faults, and how to see it again."""
    print(f"seed {outcome.seed} breaks:", *outcome.problems[:8], sep="\n  ")
    print("with these faults:", *outcome.faults, sep="\n  ")
    print(f"again: make swarm SEED={outcome.seed}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--seed", type=int, help="play this one, and print its trace to build/swarm"
    )
    parser.add_argument("--seeds", type=int, default=50, help="how many to play (%(default)s)")
    parser.add_argument("--first", type=int, default=1, help="the first of them (%(default)s)")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after this long")
    parser.add_argument("--ledger", type=Path, default=LEDGER)
    parser.add_argument("--no-ledger", action="store_true", help="play all, and write nothing down")
    parser.add_argument("--keep-going", action="store_true", help="go on after a failure")
    parser.add_argument("--no-shrink", action="store_true", help="report a failure as it came")
    chosen = parser.parse_args()
    if chosen.seed is not None:
        return _one(chosen.seed)
    with no_cleanup():
        return _many(chosen)


def _many(chosen: argparse.Namespace) -> int:
    ledger = None if chosen.no_ledger else Ledger(chosen.ledger)
    began, played, failed, requests = time.monotonic(), 0, list[int](), 0
    for seed in range(chosen.first, chosen.first + chosen.seeds):
        if ledger is not None and seed in ledger.played:
            continue
        if time.monotonic() - began > chosen.seconds:
            break
        at = time.monotonic()
        outcome = play(seed)
        played, requests = played + 1, requests + outcome.requests
        if ledger is not None:
            ledger.note(outcome, time.monotonic() - at)
        if outcome.problems:
            failed.append(seed)
            as_it_came = chosen.keep_going or chosen.no_shrink
            report(outcome if as_it_came else shrink(outcome))
            if not chosen.keep_going:
                break
    took = time.monotonic() - began
    print(f"{played} seeds, {requests} requests, {took:.0f} s; failed: {failed or 'none'}")
    return 1 if failed else 0


def _one(seed: int) -> int:
    outcome = play(seed)
    if outcome.problems:
        outcome = shrink(outcome)
        report(outcome)
    path = LEDGER.parent / f"{seed}.trace"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(outcome.trace) + "\n")
    print(f"{outcome.requests} requests, trace {outcome.digest}: {path.relative_to(_ROOT)}")
    return 1 if outcome.problems else 0


if __name__ == "__main__":
    sys.exit(main())
