from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.cli.environment import CommandEnvironment, command_environment, in_background


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandEnvironment]:
    """A cluster with an operator, for all tests of a module.

    Not for the session: its thread draws random numbers, which Hypothesis' tests elsewhere notice.
    """
    directory = tmp_path_factory.mktemp("environment")
    with in_background(lambda: command_environment(directory)) as made:
        yield made
