"""The contract of a reconciler: its request, its result, how one call is made and what is measured.

A reconciler gets the name of an object and never what happened to it: it compares what is with
what should be. It answers by returning (None, or a `Result`) or by raising. An exception means
"try again, later each time"; `TerminalError` means that trying again is of no use.
"""

from __future__ import annotations

import asyncio
import dataclasses
import enum
import inspect
import logging
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeAlias

from kubeloop.objects.meta import ObjectName

Request: TypeAlias = ObjectName
"""The object to reconcile, by namespace and name; nothing of the event that caused it."""

# How long after its timeout a call may still clean up before it counts as ignoring the timeout.
_CLEAN_UP_SECONDS = 5.0

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The next step for a reconciled object; nothing by default.

    `requeue_after`: reconcile again after this many seconds; the failures counted so far are
    forgotten. `requeue`: reconcile again as after a failure, with growing delays. `priority`: of
    the next reconcile; by default unchanged.
    """

    requeue_after: float | None = None
    requeue: bool = False
    priority: int | None = None


Reconcile: TypeAlias = Callable[[Request], Awaitable[Result | None]]


class TerminalError(Exception):
    """A failure that no retry can mend, such as an invalid specification.

    The object is reconciled again only when something about it changes.
    """


class ReconcileTimeout(TimeoutError):
    """A reconcile took longer than its controller allows."""


async def call_reconciler(reconcile: Reconcile, request: Request, timeout: float | None) -> Result:
    """Reconcile once. Raises what the reconciler raises, and `ReconcileTimeout`.

    Only this timeout becomes a `ReconcileTimeout`; one of the reconciler's own stays what it is.
    A cancellation that was not requested of the calling task (the reconciler awaited a task that was
    cancelled) is a failure of the reconciler, not an end of the caller.
    """
    limit = asyncio.timeout(timeout)
    try:
        async with limit:
            with _Watchdog(request, timeout):
                answer = await reconcile(request)
    except TimeoutError as error:
        if limit.expired():
            raise ReconcileTimeout(f"reconcile of {request} took more than {timeout} s") from error
        raise
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        raise RuntimeError(f"reconcile of {request} awaited something cancelled") from error
    # Not every program is type-checked, and the queue can act on a Result only.
    if not isinstance(answer, Result | None):
        raise TypeError(f"reconcile returned {type(answer).__name__}; return a Result or None")
    return answer or Result()


def check_is_async(function: Callable[..., object]) -> None:
    """Raise TypeError for a plain function; other callables may return an awaitable."""
    inner = inspect.unwrap(function)
    plain = inspect.isfunction(inner) or inspect.ismethod(inner)
    if plain and not inspect.iscoroutinefunction(inner) and inner.__name__ != "<lambda>":
        raise TypeError(f"{inner.__qualname__} must be a coroutine function: write async def")


class _Watchdog:
    """Logs a call that goes on long after its timeout: it must have swallowed the cancellation."""

    def __init__(self, request: Request, timeout: float | None) -> None:
        self._request = request
        self._timeout = timeout
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> None:
        if self._timeout is not None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._timeout + _CLEAN_UP_SECONDS, self._warn)

    def __exit__(self, *_exception: object) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _warn(self) -> None:
        _log.error(
            "reconcile of %s still runs %g s after its timeout of %g s: it must let CancelledError pass",
            *(self._request, _CLEAN_UP_SECONDS, self._timeout),
        )


class Outcome(enum.Enum):
    """How one turn of a worker ended; each value is fit for a metric's label."""

    SUCCESS = "success"
    REQUEUE_AFTER = "requeue_after"
    REQUEUE = "requeue"
    ERROR = "error"
    TIMEOUT = "timeout"
    TERMINAL = "terminal"
    LAGGING = "lagging"


class ControllerMetrics(Protocol):
    """Receives the measurements of one controller. Calls must be quick and must not raise."""

    def reconciled(self, outcome: Outcome, seconds: float) -> None:
        """Count a turn by its outcome and observe how long it took."""

    def busy(self, workers: int) -> None:
        """Set how many workers are reconciling."""


class NoControllerMetrics:
    """Counts nothing."""

    def reconciled(self, outcome: Outcome, seconds: float) -> None: ...
    def busy(self, workers: int) -> None: ...
