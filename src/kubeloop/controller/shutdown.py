"""An orderly stop: stage by stage, with one span of grace for all of it.

Each stage is asked to end and waited for. When the grace is used up, whatever still runs is asked a
second time, which means now, and is not waited for any longer; the stages that follow get no time
either. What did not end is remembered by name.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kubeloop.controller.runnables import RunnableGroup

_log = logging.getLogger(__name__)


class Shutdown:
    """One stop, begun when it is made. `grace` 0 waits for nothing, less than 0 for ever."""

    def __init__(self, grace: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._deadline = None if grace < 0 else self._loop.time() + grace
        self.stuck: list[str] = []

    async def stop(self, groups: Sequence[RunnableGroup]) -> None:
        """Stop the groups of one stage, all at the same time."""
        for group in groups:
            group.cancel()
        left = self._left()
        await asyncio.gather(*(group.wait(left) for group in groups))
        for group in groups:
            self._give_up(group.running)
            group.cancel()

    async def end(self, task: asyncio.Task[None] | None) -> None:
        """Cancel a task that is no group's, and wait for it."""
        if task is None or task.done():
            return
        task.cancel()
        await asyncio.wait({task}, timeout=self._left())
        if not task.done():
            self._give_up([task.get_name()])
            task.cancel()

    def _left(self) -> float | None:
        return None if self._deadline is None else max(0.0, self._deadline - self._loop.time())

    def _give_up(self, names: list[str]) -> None:
        if names:
            _log.warning("not waiting any longer for %s", ", ".join(names))
            self.stuck += names
