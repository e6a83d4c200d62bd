from __future__ import annotations

from collections.abc import Iterator

import pytest
import structlog
from tests.elasti.cli.stage import Stage, on_stage


@pytest.fixture(scope="session")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """A cluster with an operator, for all tests of commands in this process."""
    # The operator would speak on the standard output that commands are judged by.
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
    try:
        with on_stage(tmp_path_factory.mktemp("stage")) as made:
            yield made
    finally:
        structlog.reset_defaults()
