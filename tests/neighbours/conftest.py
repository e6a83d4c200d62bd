from __future__ import annotations

import pytest

from tests.neighbours.rows import BUILD, Report


@pytest.fixture(scope="session")
def report() -> Report:
    """What this run did with each neighbour: build/neighbours/report.json."""
    return Report(BUILD)
