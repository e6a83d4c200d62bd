"""The part of the leak guard that runs on a test's own loop; needs pytest-asyncio."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest_asyncio

from kubeloop.testing.leaks import SocketGuard, TaskGuard

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@pytest_asyncio.fixture
async def kubeloop_task_guard() -> AsyncIterator[None]:
    """Fail the test where a task of its loop still runs when all its other fixtures are gone."""
    guard = TaskGuard()
    yield
    await guard.check()


@pytest_asyncio.fixture
async def kubeloop_socket_guard() -> AsyncIterator[None]:
    """Fail the test where a socket of its loop is still open when its other fixtures are gone."""
    guard = SocketGuard()
    yield
    await guard.check()
