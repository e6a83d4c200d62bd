"""Do something again and again, or until it holds, without overlapping and without drifting tasks.

Every function ends in two ways beside its own: by cancellation of the task that runs it, or by an
optional `stop` event. A stop that falls together with a timer wins: nothing is called after it.
Functions and conditions may be plain or `async`; time is the running loop's.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import random
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from kubeloop.aio.backoff import Backoff, Random, jittered

Action: TypeAlias = Callable[[], Awaitable[object] | object]
Condition: TypeAlias = Callable[[], Awaitable[bool] | bool]
ErrorReport: TypeAlias = Callable[[Exception], None]

_log = logging.getLogger(__name__)


async def rest(seconds: float, stop: asyncio.Event | None = None) -> bool:
    """Wait `seconds`, or until `stop` is set; returns whether it is set."""
    if stop is None:
        await asyncio.sleep(seconds)
        return False
    try:
        async with asyncio.timeout(seconds):
            await stop.wait()
    except TimeoutError:
        pass
    return stop.is_set()


async def until(
    func: Action,
    period: float,
    stop: asyncio.Event | None = None,
    *,
    sliding: bool = True,
    jitter: float = 0.0,
    on_error: ErrorReport | None = None,
    rand: Random = random.random,
) -> None:
    """Call `func` at once and then every `period` seconds, one call at a time, until stopped.

    Sliding, the period is counted from the end of a call; otherwise from its start, and a call
    that overruns is followed by the next at once, with no ticks saved up. `jitter` lengthens each
    period by up to that factor. An exception of `func` goes to `on_error` (default: the log) and
    the loop goes on. Returns when `stop` is set.
    """
    loop = asyncio.get_running_loop()
    while stop is None or not stop.is_set():
        pause = jittered(period, jitter, rand)
        due = loop.time() + pause
        await _guarded(func, on_error or _log_error)
        if sliding:
            due = loop.time() + pause
        await rest(max(0.0, due - loop.time()), stop)


async def poll(
    condition: Condition,
    interval: float,
    stop: asyncio.Event | None = None,
    *,
    immediate: bool = False,
    timeout: float | None = None,
) -> bool:
    """Ask every `interval` seconds until the condition holds: True; False when stopped before.

    `immediate` asks first and rests then; it asks once even if `stop` is already set, so guard in
    the condition where that matters. Raises TimeoutError after `timeout` seconds, and whatever the
    condition raises.
    """
    async with asyncio.timeout(timeout):
        if immediate and await _holds(condition):
            return True
        while not await rest(interval, stop):
            if await _holds(condition):
                return True
        return False


async def exponential_backoff(
    condition: Condition,
    backoff: Backoff,
    stop: asyncio.Event | None = None,
    *,
    rand: Random = random.random,
) -> bool:
    """Ask at most `backoff.steps` times with rests between: True once it holds, False if stopped.

    Raises TimeoutError if the condition does not hold at the last try (no rest follows it), ValueError
    if the backoff has no number of steps, and whatever the condition raises.
    """
    if backoff.steps is None:
        raise ValueError("exponential_backoff needs backoff.steps, the number of tries")
    delays = backoff.start(rand=rand)
    for tries_left in range(backoff.steps - 1, -1, -1):
        if stop is not None and stop.is_set():
            return False
        if await _holds(condition):
            return True
        if tries_left:
            await rest(delays.next_delay(), stop)
    raise TimeoutError(f"the condition did not hold in {backoff.steps} tries")


async def _guarded(func: Action, on_error: ErrorReport) -> None:
    try:
        result = func()
        if inspect.isawaitable(result):
            await result
    except Exception as error:  # noqa: BLE001 -- reported, and one failed call must not end the loop
        on_error(error)


async def _holds(condition: Condition) -> bool:
    result = condition()
    return await result if inspect.isawaitable(result) else result


def _log_error(error: Exception) -> None:
    _log.error("periodic call failed", exc_info=error)
