"""Where the neighbours' programs are that `make neighbours` builds."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.controlplane.plugin import ELSEWHERE

_BUILD = Path(__file__).parents[2] / "hack" / "neighbours" / "build"


def program(name: str) -> Path:
    """Return a neighbour's program; the test is skipped with the reason if it is not in the cache."""
    where = subprocess.run(
        [_BUILD, "--where", name], check=True, stdout=subprocess.PIPE, text=True
    ).stdout.strip()
    found = Path(where) / name
    if not found.is_file():
        pytest.skip(f"{name} is not built (make neighbours): {ELSEWHERE}")
    return found
