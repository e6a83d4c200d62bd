"""What resolver tests share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.log_lines import capture_logs

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def log_output() -> Iterator[list[Any]]:
    """The log lines of the test, as dicts."""
    with capture_logs() as lines:
        yield lines
