"""The pytest plugin: virtual time by marker, and a guard against what tests leave behind.

It is loaded wherever kubeloop is installed and does nothing until it is asked.

`@pytest.mark.virtual_time` (or `pytestmark = pytest.mark.virtual_time`) runs a test's coroutine on
a `VirtualTimeLoop`. Needs pytest-asyncio 1.4 or newer.

The fixture `kubeloop_leak_guard` fails a test that leaves a running task, a thread, an unclosed
socket or transport, or an exception that was never retrieved. For all tests of a directory, put into
its conftest.py

    @pytest.fixture(autouse=True)
    def leak_guard(kubeloop_leak_guard): ...

`@pytest.mark.allow_leaks("tasks")` lets a test off; kinds are tasks, threads, resources and errors,
and none named means all.
"""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Generator, Iterator, Mapping

    LoopFactories = Mapping[str, Callable[[], asyncio.AbstractEventLoop]]

_GUARD = "kubeloop_leak_guard"
# The last one checks first: tasks that still run would explain open sockets.
_LOOP_FIXTURES = {"resources": "kubeloop_socket_guard", "tasks": "kubeloop_task_guard"}
_KINDS = frozenset({"tasks", "threads", "resources", "errors"})
# A warning in a destructor cannot be raised; pytest reports it as one of the second kind.
_RESOURCE_FILTERS = (
    "error::ResourceWarning",
    "error::pytest.PytestUnraisableExceptionWarning",
    "error::pytest.PytestUnhandledThreadExceptionWarning",
)


def pytest_configure(config: pytest.Config) -> None:
    """Declare the markers, and the fixtures that need pytest-asyncio where it is there."""
    config.addinivalue_line("markers", "virtual_time: run on a loop whose time jumps")
    config.addinivalue_line(
        "markers", "allow_leaks(*kinds): what the test may leave behind; none named means all"
    )
    if config.pluginmanager.hasplugin("asyncio"):
        from kubeloop.testing import leak_fixtures  # noqa: PLC0415 -- only with pytest-asyncio

        config.pluginmanager.register(leak_fixtures, "kubeloop-leak-fixtures")


def pytest_itemcollected(item: pytest.Item) -> None:
    """Make warnings about resources errors where the guard is used."""
    if item.get_closest_marker("virtual_time") is not None:
        _need_loop_factories(item.config)
    if _GUARD in getattr(item, "fixturenames", ()) and "resources" in _guarded(item):
        for entry in _RESOURCE_FILTERS:
            # First, so that the test's own filters come later and win.
            item.add_marker(pytest.mark.filterwarnings(entry), append=False)


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


@pytest.fixture
def kubeloop_leak_guard(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail the test where it leaves something behind; see the plugin's documentation."""
    from kubeloop.testing import leaks  # noqa: PLC0415 -- only where it is asked for

    guarded = _guarded(request.node)
    if _runs_on_a_loop(request.node):
        for kind, fixture in _LOOP_FIXTURES.items():
            if kind in guarded:
                request.getfixturevalue(fixture)
    threads = leaks.ThreadGuard() if "threads" in guarded else None
    errors = leaks.ErrorGuard() if "errors" in guarded else None
    yield
    for guard in (threads, errors):
        if guard is not None:
            guard.check()


def _guarded(item: pytest.Item) -> frozenset[str]:
    marker = item.get_closest_marker("allow_leaks")
    if marker is None:
        return _KINDS
    unknown = set(marker.args) - _KINDS
    if unknown:
        raise pytest.UsageError(
            f"{item.nodeid}: allow_leaks knows {', '.join(sorted(_KINDS))}; not {unknown.pop()!r}"
        )
    return _KINDS - set(marker.args) if marker.args else frozenset()


def _runs_on_a_loop(item: pytest.Item) -> bool:
    if importlib.util.find_spec("pytest_asyncio") is None:
        return False
    from pytest_asyncio import is_async_test  # noqa: PLC0415 -- only where it is installed

    return bool(is_async_test(item))


def _need_loop_factories(config: pytest.Config) -> None:
    hook = getattr(config.hook, "pytest_asyncio_loop_factories", None)
    if hook is None or hook.spec is None:
        raise pytest.UsageError("the marker virtual_time needs pytest-asyncio 1.4 or newer")
