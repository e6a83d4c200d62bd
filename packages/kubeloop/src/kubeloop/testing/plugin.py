"""The pytest plugin: virtual time by marker.

It is loaded wherever kubeloop is installed and does nothing until it is asked.

`@pytest.mark.virtual_time` (or `pytestmark = pytest.mark.virtual_time`) runs a test's coroutine on
a `VirtualTimeLoop`. Needs pytest-asyncio 1.4 or newer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Generator, Mapping

    LoopFactories = Mapping[str, Callable[[], asyncio.AbstractEventLoop]]


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker."""
    config.addinivalue_line("markers", "virtual_time: run on a loop whose time jumps")


def pytest_itemcollected(item: pytest.Item) -> None:
    """Refuse the marker where pytest-asyncio cannot honour it."""
    if item.get_closest_marker("virtual_time") is not None:
        _need_loop_factories(item.config)


@pytest.hookimpl(optionalhook=True, wrapper=True)
def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Generator[None, LoopFactories | None, LoopFactories]:
    """Choose the loop by the test's marker; without it, whatever others chose, or the usual one."""
    import asyncio  # noqa: PLC0415 -- not in runs without async tests

    chosen = yield
    if item.get_closest_marker("virtual_time") is None:
        return chosen or {"default": asyncio.new_event_loop}
    from kubeloop.testing.virtual_time import VirtualTimeLoop  # noqa: PLC0415 -- as above

    return {"virtual": VirtualTimeLoop}


def _need_loop_factories(config: pytest.Config) -> None:
    hook = getattr(config.hook, "pytest_asyncio_loop_factories", None)
    if hook is None or hook.spec is None:
        raise pytest.UsageError("the marker virtual_time needs pytest-asyncio 1.4 or newer")
