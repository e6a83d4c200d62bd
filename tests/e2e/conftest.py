"""What all end-to-end tests share: the settings, and a report that shows this session only."""

from __future__ import annotations

import pytest

from tests.e2e import report, settings
from tests.e2e.settings import Settings


@pytest.fixture(scope="session")
def e2e_settings() -> Settings:
    """How long scenarios are, and where the report goes; an earlier report is removed."""
    found = settings.current()
    report.forget(found.output)
    return found
