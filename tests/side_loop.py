"""Something that outlives tests, on a loop and a thread of its own: tests have a loop each."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import TypeAlias, TypeVar

T = TypeVar("T")
Main: TypeAlias = Callable[["SideLoop"], Awaitable[None]]


class SideLoop:
    """Runs `main` between `start` and `stop`; may be used from any thread.

    `main` says when it is ready, and ends when `until_stopped` returns.
    """

    def __init__(self, name: str, main: Main, *, start_seconds: float) -> None:
        self._name = name
        self._main = main
        self._start_seconds = start_seconds
        self._started = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=name)

    def start(self) -> None:
        """Return when `main` is ready; raises what it failed with."""
        self._thread.start()
        if not self._started.wait(self._start_seconds):
            raise TimeoutError(f"{self._name} was not ready in {self._start_seconds:.0f} s")
        self._raise_failure()

    def stop(self) -> None:
        """End it, and return when it has ended; raises what it failed with."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join()
        self._raise_failure()

    def submit(self, work: Awaitable[T]) -> Future[T]:
        """Have something done beside `main`."""

        async def done() -> T:
            return await work

        return asyncio.run_coroutine_threadsafe(done(), self._loop)

    # For `main`

    def ready(self) -> None:
        """Let `start` return."""
        self._started.set()

    async def until_stopped(self) -> None:
        """Return when somebody wants the end."""
        await self._end.wait()

    # Its own thread

    def _run(self) -> None:
        try:
            asyncio.run(self._play())
        except BaseException as error:
            self._failure = error
        finally:
            self._started.set()

    async def _play(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._end = asyncio.Event()
        await self._main(self)

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise RuntimeError(f"{self._name} failed") from self._failure
