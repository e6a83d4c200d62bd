"""The data path runs on uvloop and on asyncio alike: so do its tests."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
import uvloop
from tests.elasti.resolver.proxy.rig import Rig

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    if item.get_closest_marker("slow") is not None:
        return {"uvloop": uvloop.new_event_loop}  # what is shipped
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    async with Rig() as rig:
        yield rig
