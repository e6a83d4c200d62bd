"""The one way in which tests wait for what another task, thread or process brings about.

`eventually` is for coroutines, `eventually_blocking` for plain functions. Both ask a predicate until
its answer is true and return that answer. At the deadline they raise AssertionError with what was
awaited and the last answer. An error of the predicate passes through, but for the types in `ignore`:
those count as "not yet", and the last one is shown.

Time is the running loop's, so in virtual time waiting costs nothing but the predicate's answers: those that
ask a server are asked less and less often there, if the test does not say how often. What must *not* happen cannot be
waited for: test it in virtual time, or wait for an event that comes after it.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

from kubeloop.testing.virtual_time import VirtualTimeLoop

POLL_SECONDS = 0.02
# In virtual time the pauses grow with the time that was waited already, by a twentieth of it.
_GROWTH = 1 / 20
_MOST_SECONDS = 0.5
_timeout = contextvars.ContextVar("timeout", default=40.0)


@contextlib.contextmanager
def patient(seconds: float) -> Iterator[None]:
    """Change the default timeout: caches that were cut off come back later each time."""
    token = _timeout.set(seconds)
    try:
        yield
    finally:
        _timeout.reset(token)


async def eventually(
    predicate: Callable[[], Any],
    what: str = "",
    *,
    timeout: float | None = None,
    every: float | None = None,
    ignore: tuple[type[Exception], ...] = (),
) -> Any:
    """Ask a predicate, plain or async, until its answer is true; a hanging one is cut off."""
    seconds = _timeout.get() if timeout is None else timeout
    last: Any = None
    loop = asyncio.get_running_loop()
    began, grows = loop.time(), every is None and isinstance(loop, VirtualTimeLoop)
    pause = POLL_SECONDS if every is None else every
    deadline = asyncio.timeout(seconds)
    try:
        async with deadline:
            while True:
                try:
                    last = predicate()
                    if inspect.isawaitable(last):
                        last = await last
                    if last:
                        return last
                except ignore as error:
                    last = error
                await asyncio.sleep(pause)
                if grows:
                    pause = min(max(pause, (loop.time() - began) * _GROWTH), _MOST_SECONDS)
    except TimeoutError:
        if not deadline.expired():
            raise  # the predicate's own
        raise AssertionError(_message(what, predicate, seconds, last)) from None


def eventually_blocking(
    predicate: Callable[[], Any],
    what: str = "",
    *,
    timeout: float | None = None,
    every: float = POLL_SECONDS,
    ignore: tuple[type[Exception], ...] = (),
) -> Any:
    """Ask a predicate until its answer is true, where there is no event loop."""
    seconds = _timeout.get() if timeout is None else timeout
    deadline = time.monotonic() + seconds
    while True:
        try:
            last = predicate()
            if last:
                return last
        except ignore as error:
            last = error
        if time.monotonic() > deadline:
            raise AssertionError(_message(what, predicate, seconds, last))
        time.sleep(every)


def _message(what: str, predicate: Callable[[], Any], seconds: float, last: Any) -> str:
    code = getattr(predicate, "__code__", None)
    place = f"{code.co_qualname} ({code.co_filename}:{code.co_firstlineno})" if code else predicate
    shown = repr(last) if isinstance(last, Exception) else json.dumps(last, default=str)
    return f"after {seconds:.1f} s still waiting for {what or place}; the last answer was {shown}"
