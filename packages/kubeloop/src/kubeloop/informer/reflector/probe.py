"""Whether a silent watch is quiet or dead.

HTTP/1.1 has no pings. The kernel's keep-alive ends a connection whose packets are lost after 45 seconds
(see `client.wire.dial`), but a relay or a load balancer that acknowledges everything and passes nothing on
looks like a quiet server until its bookmarks are overdue, for three minutes.

So a watch that is silent for half a minute is asked for once more, for one second, from the same version
and over a connection of its own. The server answers from its watch cache, with whatever came after that
version. If that is nothing, the watch has missed nothing. If it is something, and the watch stays silent,
the watch is dead. If no answer comes, that proves nothing: the watch stays, in doubt.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from typing import TYPE_CHECKING, Generic, TypeVar

from kubeloop.aio.tasks import finish
from kubeloop.client.errors import Gone, KubeError
from kubeloop.informer.reflector.timers import SilentWatch, StreamGuard
from kubeloop.objects.list_watch import BOOKMARK, ERROR

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from kubeloop.informer.reflector.source import ListWatch
    from kubeloop.objects.list_watch import WatchOptions

T = TypeVar("T")

# How long an answer may take, as client-go gives a ping; and how long an event may be on its way.
ANSWER_TIMEOUT = 15.0
GRACE = 2.0


class SilenceProbe(Generic[T]):
    """Compares a watch with a short second one whenever it was silent for `after` seconds; 0 is never."""

    def __init__(self, source: ListWatch[T], *, after: float) -> None:
        self._source = source
        self._after = after
        self._doubt = ""
        self._doubted_at = 0.0

    @contextlib.asynccontextmanager
    async def watching(
        self, guard: StreamGuard, request: Callable[[], WatchOptions]
    ) -> AsyncIterator[None]:
        """Probe during an `async with` block; a dead watch interrupts the guard with `SilentWatch`.

        `request` returns what the watch asked for, at the version that it has reached.
        """
        if not self._after:
            yield
            return
        task = asyncio.create_task(self._run(guard, request), name="watch probe")
        try:
            yield
        finally:
            await finish([task])

    def doubt(self, guard: StreamGuard) -> str:
        """Return why a watch may be behind; empty if it was heard since, or found to be well."""
        return self._doubt if guard.heard_at == self._doubted_at else ""

    async def _run(self, guard: StreamGuard, request: Callable[[], WatchOptions]) -> None:
        loop = asyncio.get_running_loop()
        probed_at = loop.time()
        while True:
            wait = self._after - min(guard.silent_for, loop.time() - probed_at)
            # Less than a clock can show would be slept for without end.
            if wait > 0.001:
                await asyncio.sleep(wait)
            else:
                probed_at = loop.time()
                if request().resource_version not in {"", "0"}:
                    await self._probe(guard, request())

    async def _probe(self, guard: StreamGuard, request: WatchOptions) -> None:
        heard_at = guard.heard_at
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT):
                missed = await self._has_events(request)
        except Gone:
            return  # only a new watch would have to list; this one may be well
        except (KubeError, TimeoutError) as error:
            why = str(error) or f"no answer in {ANSWER_TIMEOUT:g} s"
            self._doubt = f"no byte in {guard.silent_for:.0f} s, and a second watch failed: {why}"
            self._doubted_at = heard_at
            return
        self._doubt = ""
        if missed and guard.heard_at == heard_at:
            await asyncio.sleep(GRACE)
            if guard.heard_at == heard_at:
                guard.interrupt(SilentWatch("a second watch got an event that this one missed"))

    async def _has_events(self, request: WatchOptions) -> bool:
        """Whether anything came after the request's version. Raises `KubeError`."""
        stream = await self._source.watch(dataclasses.replace(request, timeout_seconds=1))
        try:
            while batch := await stream.read():
                if any(event.type not in {BOOKMARK, ERROR} for event in batch):
                    return True
            return False
        finally:
            await stream.close()
