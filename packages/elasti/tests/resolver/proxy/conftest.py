"""The data path runs on uvloop and on asyncio alike: so do its tests."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
import uvloop
from tests.resolver.proxy.real_pods import release_when_held, shared_web_pod
from tests.resolver.proxy.rig import Rig

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from elasti.resolver.proxy.upstream.interface import UpstreamAddress


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


@pytest.fixture(scope="session")
def web_server() -> Iterator[UpstreamAddress]:
    """A web server for all tests: to start one takes longer than most of them."""
    with shared_web_pod() as address:
        yield address


@pytest.fixture(params=["at once", "held"])
async def web(
    rig: Rig, request: pytest.FixtureRequest, web_server: UpstreamAddress
) -> AsyncIterator[UpstreamAddress]:
    """A web server that answers already, or that every client waits for first."""
    if request.param == "at once":
        rig.upstream.pods.append(web_server)
        yield web_server
    else:
        release = asyncio.create_task(release_when_held(rig, web_server))
        yield web_server
        await release
