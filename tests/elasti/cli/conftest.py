from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.elasti.cli.stage import Stage, in_background, whole_stage


@pytest.fixture(scope="session")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """A cluster with an operator, for all tests of commands in this process."""
    directory = tmp_path_factory.mktemp("stage")
    with in_background(lambda: whole_stage(directory)) as made:
        yield made
