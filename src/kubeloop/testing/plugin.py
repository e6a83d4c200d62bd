"""The pytest plugin: virtual time by marker, and a guard against leaked tasks.

`@pytest.mark.virtual_time` (or `pytestmark = pytest.mark.virtual_time`) runs a test's coroutine on
a `VirtualTimeLoop`. Needs pytest-asyncio. An asyncio test that leaves a task running fails.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from kubeloop.testing.virtual_time import VirtualTimeLoop

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def pytest_configure(config: pytest.Config) -> None:
    """Declare the markers."""
    config.addinivalue_line("markers", "virtual_time: run on a loop whose time jumps")
    config.addinivalue_line("markers", "leaves_tasks: the test may end with tasks running")


@pytest.hookimpl(optionalhook=True)
def pytest_asyncio_loop_factories(
    config: pytest.Config,
    item: pytest.Item,
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Choose the loop by the test's marker."""
    if item.get_closest_marker("virtual_time") is not None:
        return {"virtual": VirtualTimeLoop}
    return {"real": asyncio.new_event_loop}
