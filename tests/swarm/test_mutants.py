"""Each known bug can still be put back."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.swarm.mutants import FEW, MUTANTS, names

_ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", names())
def test_a_mutant_applies_to_the_source(name: str):
    patch = MUTANTS / f"{name}.patch"
    command = ["patch", "--strip=1", "--dry-run", "--force", f"--input={patch}"]
    done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"change the patch with the source: {done.stdout}"


def test_the_few_and_the_readme_name_mutants():
    page = (Path(__file__).parent / "README.md").read_text()
    assert set(FEW) <= set(names())
    assert [name for name in names() if f"`{name}`" not in page] == []
