"""One controller of the set: its name, its loop, and the switch that pauses it."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from elasti.devcluster.controllers.pausing import Pausable
from kubeloop.controller.controller import Controller
from kubeloop.controller.ratelimiters import ExponentialLimiter

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from kubeloop.controller.consistency import ConsistencyGuard
    from kubeloop.controller.ratelimiters import RateLimiter
    from kubeloop.controller.reconcile import Reconcile, Request

# A dev cluster's objects are few and its users wait: failures are tried again soon.
_LONGEST_RETRY = 10.0


@dataclasses.dataclass(frozen=True, slots=True)
class Part:
    """A controller that can be paused."""

    name: str
    controller: Controller
    gate: Pausable
    background: Callable[[], Coroutine[Any, Any, None]] | None = None

    @classmethod
    def of(
        cls,
        name: str,
        reconcile: Reconcile,
        *,
        workers: int = 1,
        guard: ConsistencyGuard | None = None,
        background: Callable[[], Coroutine[Any, Any, None]] | None = None,
    ) -> Part:
        """Build one around a reconciler; its watches are added to `controller`.

        `background` runs beside it, and is not paused with it.
        """
        gate = Pausable(reconcile)
        limiter: RateLimiter[Request] = ExponentialLimiter(cap=_LONGEST_RETRY)
        controller = Controller(
            name, gate, workers=workers, consistency=guard, rate_limiter=limiter
        )
        return cls(name, controller, gate, background)

    def pause(self) -> None:
        """Do nothing from now on, as a controller that hangs."""
        self.gate.pause()

    def resume(self) -> None:
        """Go on with everything that was asked for meanwhile."""
        for request in self.gate.resume():
            self.controller.queue.add(request)
