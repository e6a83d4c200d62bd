"""A pytest plugin that fails a test which leaves something behind.

The fixture `leak_guards` finds a running task, a thread, an unclosed socket or transport, and an
exception that was never retrieved. `@pytest.mark.allow_leaks("tasks")` lets a test off; kinds are
tasks, threads, resources and errors, and none named means all.

Each guard notes what is there at the beginning, so that what was there before (a session's server,
say) is no leak of the test, and each gives things that are about to end a moment to do so.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterable, Iterator

import pytest
import pytest_asyncio

# The last one checks first: tasks that still run would explain open sockets.
_LOOP_FIXTURES = {"resources": "leak_guard_sockets", "tasks": "leak_guard_tasks"}
_KINDS = frozenset({"tasks", "threads", "resources", "errors"})
# A warning in a destructor cannot be raised; pytest reports it as one of the second kind.
_RESOURCE_FILTERS = (
    "error::ResourceWarning",
    "error::pytest.PytestUnraisableExceptionWarning",
    "error::pytest.PytestUnhandledThreadExceptionWarning",
)

# Turns of the loop that a cancelled task, or a closing transport, may take to end.
_TURNS = 20
# Seconds, then, for transports that say goodbye to a peer, and for threads that are ending.
_SOCKET_PATIENCE = 0.5
_THREAD_PATIENCE = 1.0
# Threads of a loop's own executor end with the loop.
_LOOP_THREADS = "asyncio_"


class LeakError(AssertionError):
    """Something was left behind; the message names it."""


class TaskGuard:
    """Watches the tasks of the running loop."""

    def __init__(self) -> None:
        self._before = asyncio.all_tasks()

    async def check(self) -> None:
        """Raise LeakError where a task still runs. Leaked tasks are cancelled first."""
        for _ in range(_TURNS):
            if not self._left():
                return
            await asyncio.sleep(0)
        left = self._left()
        if left:
            found = _listed("tasks", sorted(describe_task(task) for task in left))
            for task in left:
                task.cancel()
            raise LeakError(f"{found}\nCancel and await each task where it is started.")

    def _left(self) -> set[asyncio.Task[object]]:
        return asyncio.all_tasks() - self._before - {asyncio.current_task()}


class SocketGuard:
    """Watches the descriptors that the running loop waits for.

    Only of selector loops, which asyncio's own are here. A transport that was never closed is kept
    alive by its loop, so that no destructor can complain about it before the loop is closed.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._before = self._registered()

    async def check(self) -> None:
        """Raise LeakError where a transport, server or reader is still open."""
        deadline = time.monotonic() + _SOCKET_PATIENCE
        for _ in range(_TURNS):
            if not self._left():
                return
            await asyncio.sleep(0)
        while self._left() and time.monotonic() < deadline:  # noqa: ASYNC110 -- no one tells
            await asyncio.sleep(0.005)
        left = self._left()
        if left:
            found = _listed("sockets", sorted(map(self._describe, left)))
            raise LeakError(f"{found}\nClose each transport, writer or server, and wait for it.")

    def _left(self) -> set[int]:
        return self._registered() - self._before

    def _registered(self) -> set[int]:
        # There is no public way to ask; other kinds of loops have no such attribute.
        selector = getattr(self._loop, "_selector", None)
        return {key.fd for key in selector.get_map().values()} if selector is not None else set()

    def _describe(self, fd: int) -> str:
        transport = getattr(self._loop, "_transports", {}).get(fd)
        return describe_descriptor(fd) if transport is None else repr(transport)


class ThreadGuard:
    """Watches the threads of the process, but those of a loop's own executor."""

    def __init__(self) -> None:
        self._before = set(threading.enumerate())

    def check(self) -> None:
        """Raise LeakError where a thread still runs."""
        deadline = time.monotonic() + _THREAD_PATIENCE
        for thread in self._left():
            thread.join(max(0.0, deadline - time.monotonic()))
        left = self._left()
        if left:
            found = _listed("threads", sorted(thread.name for thread in left))
            raise LeakError(f"{found}\nStop and join each thread where it is started.")

    def _left(self) -> list[threading.Thread]:
        return [
            thread
            for thread in threading.enumerate()
            if thread not in self._before and not thread.name.startswith(_LOOP_THREADS)
        ]


class ErrorGuard(logging.Handler):
    """Collects what asyncio could only log: exceptions never retrieved, unclosed sessions."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self._logger = logging.getLogger("asyncio")
        self._found: list[str] = []
        self._logger.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the message and the exception."""
        text = record.getMessage()
        if record.exc_info and record.exc_info[1] is not None:
            text += f" ({record.exc_info[1]!r})"
        self._found.append(text)

    def check(self) -> None:
        """Stop collecting; raise LeakError where there was anything.

        Young garbage is collected first: objects complain when they are freed.
        """
        gc.collect(1)
        self._logger.removeHandler(self)
        if self._found:
            raise LeakError(_listed("errors", self._found))


def describe_task(task: asyncio.Task[object]) -> str:
    """Name a task, its coroutine and the line at which it waits."""
    coroutine = task.get_coro()
    name = getattr(coroutine, "__qualname__", repr(coroutine))
    stack = task.get_stack(limit=1)
    where = f" at {stack[-1].f_code.co_filename}:{stack[-1].f_lineno}" if stack else ""
    return f"{task.get_name()}: {name}{where}"


def describe_descriptor(fd: int) -> str:
    """Tell what a file descriptor is: a server and its address, a socket, or just its number."""
    try:
        with socket.socket(fileno=os.dup(fd)) as probe:
            listens = probe.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
            return f"{'server' if listens else 'socket'} at {probe.getsockname()}"
    except OSError:
        return f"descriptor {fd}"


def _listed(what: str, lines: Iterable[str]) -> str:
    return f"the test left {what} behind:\n" + "\n".join(f"  {line}" for line in lines)


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker."""
    config.addinivalue_line(
        "markers", "allow_leaks(*kinds): what the test may leave behind; none named means all"
    )


def pytest_itemcollected(item: pytest.Item) -> None:
    """Make warnings about resources errors where the guard is used."""
    if "leak_guards" in getattr(item, "fixturenames", ()) and "resources" in _guarded(item):
        for entry in _RESOURCE_FILTERS:
            # First, so that the test's own filters come later and win.
            item.add_marker(pytest.mark.filterwarnings(entry), append=False)


@pytest.fixture
def leak_guards(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail the test where it leaves something behind."""
    guarded = _guarded(request.node)
    if pytest_asyncio.is_async_test(request.node):
        for kind, fixture in _LOOP_FIXTURES.items():
            if kind in guarded:
                request.getfixturevalue(fixture)
    threads = ThreadGuard() if "threads" in guarded else None
    errors = ErrorGuard() if "errors" in guarded else None
    yield
    for guard in (threads, errors):
        if guard is not None:
            guard.check()


@pytest_asyncio.fixture
async def leak_guard_tasks() -> AsyncIterator[None]:
    """Fail the test where a task of its loop still runs when all its other fixtures are gone."""
    guard = TaskGuard()
    yield
    await guard.check()


@pytest_asyncio.fixture
async def leak_guard_sockets() -> AsyncIterator[None]:
    """Fail the test where a socket of its loop is still open when its other fixtures are gone."""
    guard = SocketGuard()
    yield
    await guard.check()


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
