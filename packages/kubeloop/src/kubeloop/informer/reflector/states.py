"""The states of a reflector, and what each falls back to; and where it puts what it learns."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Generic, Protocol, TypeAlias, TypeVar

if TYPE_CHECKING:
    from kubeloop.informer.reflector.events import Delta
    from kubeloop.informer.reflector.listing import OpenStream
    from kubeloop.objects.meta import Key

T = TypeVar("T")


class Sink(Protocol[T]):
    """Where a reflector puts what it learns; `DeltaQueue` is one."""

    def put(self, items: list[Delta[T]]) -> None:
        """Take the changes of one read."""

    def replace(self, items: dict[Key, T], version: str) -> None:
        """Take a complete list."""

    def bookmark(self, version: str) -> None:
        """Take note that nothing changed up to `version`."""

    def resync(self) -> None:
        """Repeat every object to those who are due."""

    async def wait_for_room(self) -> None:
        """Wait until more may come."""


@dataclasses.dataclass(frozen=True, slots=True)
class Starting:
    """Nothing known is current. Goes to Streaming or Listing, at once."""


@dataclasses.dataclass(frozen=True, slots=True)
class Streaming:
    """A streaming list is due.

    410 and too large: again, as a consistent read; if that is refused too, Resting. 429, no connection, a stream cut short: Resting,
    then again. Anything else: Listing, for this cycle.
    """


@dataclasses.dataclass(frozen=True, slots=True)
class Listing:
    """A list is due. Any error: Resting, then Starting."""


@dataclasses.dataclass(frozen=True, slots=True)
class Watching(Generic[T]):
    """Watches from the last version of the list on.

    Closed: again, at once, a few times in a row. 429 or no connection: Resting, then again. Anything else, 410 above all:
    Resting, then Starting.
    """

    opened: OpenStream[T] | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Resting(Generic[T]):
    """Something failed or ended: wait one step, go to `then`.

    `error` goes to the error handler; `because` is not our failure and is only logged, so that a
    person who waits for a sync can see what it waits for.
    """

    then: Starting | Streaming | Watching[T]
    error: Exception | None = None
    because: Exception | None = None
    at_least: float = 0.0


ReflectorState: TypeAlias = Starting | Streaming | Listing | Watching[T] | Resting[T]
