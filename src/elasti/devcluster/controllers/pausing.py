"""A reconciler that can be told to wait, as a controller that hangs would."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kubeloop.controller.reconcile import Reconcile, Request, Result


class Pausable:
    """Passes requests on; while paused it keeps them.

    Nothing is awaited while paused, so that a stop does not wait for a pause to end.
    """

    def __init__(self, reconcile: Reconcile) -> None:
        self._reconcile = reconcile
        self._paused = False
        self._held: dict[Request, None] = {}

    @property
    def is_paused(self) -> bool:
        """Whether requests are kept."""
        return self._paused

    def pause(self) -> None:
        """Begin no further reconcile; one that runs goes on to its end."""
        self._paused = True

    def resume(self) -> tuple[Request, ...]:
        """Go on; returns what was kept, for the queue."""
        self._paused = False
        held, self._held = tuple(self._held), {}
        return held

    async def __call__(self, request: Request) -> Result | None:
        """Reconcile, or keep the request."""
        if self._paused:
            self._held[request] = None
            return None
        return await self._reconcile(request)
