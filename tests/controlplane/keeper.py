"""Starts programs again that ended by themselves, as a kubelet does for static pods.

The controllers and the scheduler leave when they lose their lease, and that is what an API server
that is away for long makes them do. Somebody must bring them back.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Self

from tests.controlplane.component import POLL_SECONDS, ComponentError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from tests.controlplane.component import Component

PAUSE_SECONDS = 1.0


class Keeper:
    """Keeps components running between `__enter__` and `__exit__`.

    It owns them during the block: nobody else may start or stop them.
    """

    def __init__(self, components: Sequence[Component]) -> None:
        self._components = components
        self._leave = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="keeper", daemon=True)
        self.restarts = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._leave.set()
        self._thread.join()

    def wait_ready(self, timeout: float) -> None:
        """Return when all of them serve, also those that are away and have to be brought back."""
        deadline = time.monotonic() + timeout
        for component in self._components:
            while not self._is_ready(component, deadline):
                time.sleep(POLL_SECONDS)

    def _is_ready(self, component: Component, deadline: float) -> bool:
        """Wait for one life of it. Raises ComponentError when the time is over."""
        try:
            component.wait_ready(max(deadline - time.monotonic(), 0))
        except ComponentError:
            if time.monotonic() >= deadline:
                raise
            return False
        return True

    def _keep(self) -> None:
        while not self._leave.wait(PAUSE_SECONDS):
            for component in self._components:
                if not component.running:
                    self.restarts += 1
                    component.launch()
