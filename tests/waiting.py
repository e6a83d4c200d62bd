"""Waiting for what somebody else brings about: asking again and again, with patience."""

from __future__ import annotations

import contextlib
import contextvars
import json
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from kubeloop.aio.wait import poll

patience = contextvars.ContextVar("patience", default=40.0)


@contextlib.contextmanager
def patient(seconds: float) -> Iterator[None]:
    """Wait longer than usual: caches that were cut off come back later each time."""
    token = patience.set(seconds)
    try:
        yield
    finally:
        patience.reset(token)


async def eventually(
    condition: Callable[[], Awaitable[Any]], *, timeout: float | None = None, every: float = 0.02
) -> Any:
    """Ask again and again until the answer is true, and return it."""
    timeout = patience.get() if timeout is None else timeout
    answer: Any = None

    async def holds() -> bool:
        nonlocal answer
        answer = await condition()
        return bool(answer)

    try:
        await poll(holds, every, immediate=True, timeout=timeout)
    except TimeoutError:
        shown = json.dumps(answer, default=str)
        raise AssertionError(f"after {timeout:.0f} s {condition} still answers {shown}") from None
    return answer
