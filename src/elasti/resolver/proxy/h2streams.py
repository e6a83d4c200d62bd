"""The requests of one h2 connection: on their way from their HEADERS to the end that the pod sends."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from elasti.resolver.proxy.front import Front


class Stream:
    """A request on its way; `held_for` is how long it waited for a pod, None where it did not."""

    __slots__ = ("answered", "began", "held_for", "is_grpc")

    def __init__(self, began: float, *, is_grpc: bool) -> None:
        self.is_grpc = is_grpc
        self.answered = False
        self.began = began
        self.held_for: float | None = None


class Streams:
    """The open streams by their numbers; `last` is the highest that was ever opened."""

    __slots__ = ("_front", "_open", "last")

    def __init__(self, front: Front) -> None:
        self._front = front
        self._open: dict[int, Stream] = {}
        self.last = 0

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[tuple[int, Stream]]:
        return iter(self._open.items())

    def get(self, number: int) -> Stream | None:
        """Return an open stream."""
        return self._open.get(number)

    def opens(self, number: int, *, is_grpc: bool) -> None:
        """A request came."""
        self.last = number
        front = self._front
        now = front.now()
        front.target.arrived(now)
        front.statistics.requests += 1
        front.statistics.active += 1
        self._open[number] = Stream(now, is_grpc=is_grpc)

    def released(self) -> None:
        """A pod was found for those who waited, or none will be."""
        now = self._front.now()
        for stream in self._open.values():
            stream.held_for = now - stream.began

    def answers(self, stream: Stream, status: int) -> None:
        """The final head of an answer came."""
        stream.answered = True
        statistics = self._front.statistics
        statistics.answers[status // 100].add(self._front.now() - stream.began)
        if stream.held_for is not None:
            statistics.held_until(status, stream.held_for)

    def closes(self, number: int) -> None:
        """Nothing more will come on a stream. Safe to repeat."""
        if self._open.pop(number, None) is not None:
            self._front.statistics.active -= 1

    def clear(self) -> None:
        """Nothing more will come on any."""
        self._front.statistics.active -= len(self._open)
        self._open.clear()
