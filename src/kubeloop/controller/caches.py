"""The informers of a program as one runnable of its manager."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kubeloop.informer.factory import SharedInformerFactory


class Caches:
    """Runs a factory's informers; ready when all of them are synced.

    For `Group.CACHES`. `sync_timeout` seconds without a full sync fail the manager's start with
    `NotSynced`, which names the informers; None waits for ever.
    """

    def __init__(
        self, factory: SharedInformerFactory, *, sync_timeout: float | None = None
    ) -> None:
        self._factory = factory
        self._sync_timeout = sync_timeout
        self._started = asyncio.Event()

    async def run(self) -> None:
        """Run the informers until cancelled; ends with the error of one that fails for good."""
        async with self._factory.running():
            self._started.set()
            await asyncio.get_running_loop().create_future()

    async def wait_until_ready(self) -> None:
        """Wait until the informers that were asked for before the start are synced."""
        await self._started.wait()
        await self._factory.wait_for_sync(self._sync_timeout)
