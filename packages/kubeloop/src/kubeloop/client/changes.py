"""Changes to an object that others change too: conflicts, and fields that a Struct does not name.

A Struct drops the fields that it does not name, such as those of a newer server. `Resource.modify`
keeps them: it reads the whole object, changes a typed copy, and carries only the difference over to
what it writes. Items of lists are matched by `name`, `key` or `type`; without such a field, by
equality, else by their position if the list has as many items as before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias, TypeVar

from kubeloop.aio.backoff import Backoff
from kubeloop.client.errors import AlreadyExists, ApplyConflict, Conflict
from kubeloop.objects.patches import same_json

T = TypeVar("T")
Change: TypeAlias = Callable[[T], Awaitable[object] | object]

_BACKOFF = Backoff(duration=0.01, factor=2.0, jitter=0.5, cap=1.0)
_MERGE_KEYS = ("name", "key", "type")


async def retry_on_conflict(call: Callable[[], Awaitable[T]], *, attempts: int = 10) -> T:
    """Call again while the answer is a Conflict; the call must read the object again each time.

    Pauses grow from 10 ms to 1 s. Raises the last Conflict. An `ApplyConflict` is raised at once,
    since other managers' fields stay theirs, and so is `AlreadyExists`.
    """
    delays = _BACKOFF.start()
    for left in range(attempts - 1, -1, -1):
        try:
            return await call()
        except (ApplyConflict, AlreadyExists):
            raise
        except Conflict:
            if not left:
                raise
            await asyncio.sleep(delays.next_delay())
    raise ValueError(f"attempts={attempts} must be at least 1")


def carry_over(raw: Any, before: Any, after: Any) -> Any:
    """Return `raw` with the changes from `before` to `after`, which name only a part of its fields."""
    if same_json(before, after):
        return raw
    if isinstance(raw, dict) and isinstance(before, dict) and isinstance(after, dict):
        result = {key: value for key, value in raw.items() if key not in before or key in after}
        for key, value in after.items():
            # What did not change is not touched, nor added: a Struct may have made it by itself.
            if key not in before or not same_json(before[key], value):
                result[key] = carry_over(raw.get(key), before.get(key), value)
        return result
    if isinstance(raw, list) and isinstance(before, list) and isinstance(after, list):
        return _carry_items(raw, before, after)
    return after


def _carry_items(raw: list[Any], before: list[Any], after: list[Any]) -> list[Any]:
    places = {_identity(item): place for place, item in enumerate(before)}
    keyed = len(places) == len(before) and None not in places
    aligned = len(before) == len(after)
    result = []
    for position, item in enumerate(after):
        if keyed:
            place = places.get(_identity(item))
        else:
            equal = (place for place, had in enumerate(before) if same_json(had, item))
            place = next(equal, position if aligned else None)
        result.append(item if place is None else carry_over(raw[place], before[place], item))
    return result


def _identity(item: Any) -> object:
    """Return what tells an item from its neighbours; None if it has no such field."""
    if isinstance(item, dict):
        return next(((key, str(item[key])) for key in _MERGE_KEYS if key in item), None)
    return str(item)
