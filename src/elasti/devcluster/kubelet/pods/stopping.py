"""The stop of one container: a hook, SIGTERM, and SIGKILL when patience is over.

The patience may become shorter while it lasts. After SIGTERM a program has two seconds at least,
however late it is.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from kubeloop.aio.tasks import finish

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from typing import Any

    from elasti.devcluster.kubelet.probes.outcome import Outcome
    from elasti.devcluster.kubelet.processes import Process

_LEAST_GRACE = 2.0


class ContainerStop:
    """One stop; `deadline` is when patience ends (loop time)."""

    def __init__(self, process: Process, *, deadline: float) -> None:
        self._process = process
        self._deadline = deadline
        self._hurried = asyncio.Event()

    def hurry(self, deadline: float) -> None:
        """Have less patience."""
        self._deadline = min(deadline, self._deadline)
        self._hurried.set()

    async def first(self, hook: Coroutine[Any, Any, Outcome]) -> str:
        """Run a hook, as long as there is time and the program runs; returns what went wrong."""
        running = asyncio.create_task(hook)
        ended = asyncio.create_task(self._process.wait())
        try:
            while not running.done() and not ended.done():
                if not await self._wait(self._deadline, running, ended):
                    return "it did not end within the grace period"
            if not running.done():
                return ""
            outcome = await running
            return "" if outcome.healthy else outcome.message or "it failed"
        finally:
            await finish([running, ended])

    async def end(self) -> None:
        """Signal the program, and return when it has ended."""
        asked = asyncio.get_running_loop().time()
        self._process.stop()
        ended = asyncio.create_task(self._process.wait())
        try:
            while not ended.done():
                if not await self._wait(max(self._deadline, asked + _LEAST_GRACE), ended):
                    self._process.kill()
                    await self._process.wait()
                    return
        finally:
            await finish([ended])

    async def _wait(self, deadline: float, *tasks: asyncio.Task[Any]) -> bool:
        """Wait for one of them or for a hurry; False when the deadline came first."""
        self._hurried.clear()
        hurried = asyncio.create_task(self._hurried.wait())
        patience = max(0.0, deadline - asyncio.get_running_loop().time())
        try:
            done, _ = await asyncio.wait(
                [*tasks, hurried], timeout=patience, return_when=asyncio.FIRST_COMPLETED
            )
            return bool(done)
        finally:
            await finish([hurried])
