"""How long others waited: for the event loop, for the interpreter, for the collector."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from typing import Any

_TICK = 0.001


class LoopTicker:
    """Finds the longest time for which the running loop did nothing else."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._due = self._loop.time() + _TICK
        self._handle = self._loop.call_at(self._due, self._tick)
        self.longest = 0.0

    def _tick(self) -> None:
        now = self._loop.time()
        self.longest = max(self.longest, now - self._due)
        self._due = now + _TICK
        self._handle = self._loop.call_at(self._due, self._tick)

    def stop(self) -> float:
        """Return the longest lateness in seconds."""
        self._handle.cancel()
        return self.longest


class ThreadTicker:
    """Finds the longest time for which another thread did not let this one run."""

    def __init__(self) -> None:
        self.longest = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        before = time.perf_counter()
        while not self._over.wait(_TICK):
            now = time.perf_counter()
            self.longest = max(self.longest, now - before - _TICK)
            before = now

    def stop(self) -> float:
        """Return the longest lateness in seconds."""
        self._over.set()
        self._thread.join()
        return self.longest


class CollectorWatch:
    """Times every collection from now on."""

    def __init__(self) -> None:
        self.longest = 0.0
        self.collections = 0
        self._began = 0.0
        gc.callbacks.append(self._note)

    def _note(self, phase: str, _info: dict[str, Any]) -> None:
        if phase == "start":
            self._began = time.perf_counter()
        else:
            self.collections += 1
            self.longest = max(self.longest, time.perf_counter() - self._began)

    def stop(self) -> None:
        """Stop timing."""
        gc.callbacks.remove(self._note)
