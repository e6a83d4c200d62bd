"""What resolver tests share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import structlog.testing

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def log_output() -> Iterator[list[Any]]:
    """The log lines of the test, as dicts."""
    with structlog.testing.capture_logs(
        processors=[structlog.contextvars.merge_contextvars]
    ) as lines:
        yield lines
