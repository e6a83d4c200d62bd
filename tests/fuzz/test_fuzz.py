"""Every kept case passes; and, for as long as FUZZ_SECONDS says, so do new ones (`make fuzz`)."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.fuzz.mutation import Finding, Mutator, fuzz
from tests.fuzz.targets import TARGETS

CORPUS = Path(__file__).parent / "corpus"
CASES = sorted(path for name in TARGETS for path in (CORPUS / name).iterdir())
# For all targets together; the seed of `make fuzz` is new each time and stands in what a failure prints.
SECONDS = float(os.environ.get("FUZZ_SECONDS", "3"))
_CHANCE = time.time_ns() % 2**32 if "FUZZ_SECONDS" in os.environ else 1
SEED = int(os.environ.get("FUZZ_SEED", "0")) or _CHANCE


@pytest.mark.parametrize("path", CASES, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_a_kept_case_passes(path: Path):
    TARGETS[path.parent.name](path.read_bytes())


@pytest.mark.timeout(SECONDS + 180)
@pytest.mark.parametrize("name", TARGETS)
def test_cases_by_chance_pass(name: str):
    count = fuzz(name, TARGETS[name], folder=CORPUS, seed=SEED, seconds=SECONDS / len(TARGETS))
    print(f"{name}: {count} cases, seed {SEED}")


def test_a_case_that_fails_is_kept_and_can_be_made_again(tmp_path: Path):
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "seed").write_bytes(b"0hello")

    def target(case: bytes) -> None:
        assert b"hello" in case[1:]

    with pytest.raises(Finding, match="play it again with: pytest tests/fuzz -k found-"):
        fuzz("x", target, folder=tmp_path, seed=7, seconds=30)
    (kept,) = tmp_path.glob("x/found-*")
    assert b"hello" not in kept.read_bytes()
    mutator = Mutator([b"0hello"], 7)
    assert kept.read_bytes() in [mutator.next() for _ in range(1000)]
