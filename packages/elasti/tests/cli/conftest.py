from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.cli.stage import Stage, in_background, whole_stage


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """A cluster with an operator, for all tests of a module.

    Not for the session: its thread draws random numbers, which Hypothesis' tests elsewhere notice.
    """
    directory = tmp_path_factory.mktemp("stage")
    with in_background(lambda: whole_stage(directory)) as made:
        yield made
