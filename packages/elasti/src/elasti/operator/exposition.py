"""Metrics in Prometheus' text format, for thousands of objects with a few series each. Pure.

Every series has an owner, an ElastiService mostly, and goes with it. A library would do, but for two
things: it adds `_total` to the names of counters, and KubeElasti's dashboards know them without; and it
takes half a second, in which nothing else happens, to write what this writes piece by piece.
"""

from __future__ import annotations

import bisect
from collections.abc import Hashable, Iterator, Sequence
from itertools import accumulate
from typing import TypeAlias

SeriesOwner: TypeAlias = Hashable
Labels: TypeAlias = tuple[str, ...]

_OWNERS_A_PIECE = 100


class Series:
    """A counter or a gauge: one number for each owner and set of labels."""

    def __init__(self, kind: str, name: str, about: str, labels: Sequence[str]) -> None:
        self.name = name
        self._head = f"# HELP {name} {about}\n# TYPE {name} {kind}\n"
        self._labels = tuple(labels)
        self._values: dict[SeriesOwner, dict[Labels, float]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._values.values()))

    def add(self, owner: SeriesOwner, *labels: str, amount: float = 1.0) -> None:
        """Count something."""
        values = self._values.setdefault(owner, {})
        values[labels] = values.get(labels, 0.0) + amount

    def put(self, owner: SeriesOwner, *labels: str, value: float) -> None:
        """Say how much it is now."""
        self._values.setdefault(owner, {})[labels] = value

    def remove(self, owner: SeriesOwner) -> None:
        """Forget an owner's series; safe where there are none."""
        self._values.pop(owner, None)

    def pieces(self) -> Iterator[str]:
        """Write it, some owners at a time; it may change between two pieces."""
        yield self._head
        owners = list(self._values)
        for start in range(0, len(owners), _OWNERS_A_PIECE):
            yield "".join(
                f"{self.name}{_braced(self._labels, labels)} {_number(value)}\n"
                for owner in owners[start : start + _OWNERS_A_PIECE]
                for labels, value in self._values.get(owner, {}).items()
            )


class HistogramSeries:
    """How often something was at most so much, for each owner and set of labels."""

    def __init__(
        self, name: str, about: str, labels: Sequence[str], bounds: Sequence[float]
    ) -> None:
        self.name = name
        self._head = f"# HELP {name} {about}\n# TYPE {name} histogram\n"
        self._labels = tuple(labels)
        self._bounds = tuple(bounds)
        self._words = (*map(_number, self._bounds), "+Inf")
        # Counts for each bound and for what is above them all; the sum comes last.
        self._values: dict[SeriesOwner, dict[Labels, list[float]]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._values.values()))

    def observe(self, owner: SeriesOwner, *labels: str, value: float) -> None:
        """Note one value."""
        series = self._values.setdefault(owner, {})
        counts = series.get(labels)
        if counts is None:
            counts = series[labels] = [0] * (len(self._bounds) + 1) + [0.0]
        counts[bisect.bisect_left(self._bounds, value)] += 1
        counts[-1] += value

    def remove(self, owner: SeriesOwner) -> None:
        """Forget an owner's series; safe where there are none."""
        self._values.pop(owner, None)

    def pieces(self) -> Iterator[str]:
        """Write it, some owners at a time; it may change between two pieces."""
        yield self._head
        owners = list(self._values)
        for start in range(0, len(owners), _OWNERS_A_PIECE):
            yield "".join(
                self._lines(labels, counts)
                for owner in owners[start : start + _OWNERS_A_PIECE]
                for labels, counts in self._values.get(owner, {}).items()
            )

    def _lines(self, labels: Labels, counts: list[float]) -> str:
        braced = _braced(self._labels, labels)
        open_braces = f"{braced[:-1]}," if braced else "{"
        sums = list(accumulate(counts[:-1]))
        buckets = "".join(
            f'{self.name}_bucket{open_braces}le="{word}"}} {_number(number)}\n'
            for word, number in zip(self._words, sums, strict=True)
        )
        return (
            f"{buckets}{self.name}_sum{braced} {_number(counts[-1])}\n"
            f"{self.name}_count{braced} {_number(sums[-1])}\n"
        )


def _braced(names: Labels, values: Labels) -> str:
    if not names:
        return ""
    pairs = (f'{name}="{_escaped(value)}"' for name, value in zip(names, values, strict=True))
    return f"{{{','.join(pairs)}}}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)
