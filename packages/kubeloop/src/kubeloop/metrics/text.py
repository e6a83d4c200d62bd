"""Writes metrics in Prometheus' text format. Pure.

A `MetricFamily` is filled at the moment of a scrape, from counters that are kept elsewhere. `OwnedSeries`
keeps the numbers itself: thousands of objects with a few series each, which go with their object, written
piece by piece so that a scrape never blocks the event loop. Names are written unchanged: no
`_total` is added to counters, because existing dashboards may know them without.
"""

from __future__ import annotations

import bisect
from collections.abc import Hashable, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Literal, TypeAlias

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

MetricKind: TypeAlias = Literal["counter", "gauge", "histogram"]
SeriesOwner: TypeAlias = Hashable
Labels: TypeAlias = tuple[str, ...]

_OWNERS_A_PIECE = 100


class Histogram:
    """How often a value was at most each bound; the last count is of all above the bounds."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def add(self, value: float) -> None:
        """Count one value."""
        self.counts[bisect.bisect_left(self.bounds, value)] += 1
        self.sum += value

    @property
    def count(self) -> int:
        """How many there were."""
        return sum(self.counts)


class MetricFamily:
    """One metric: its name, its meaning, and a line for each set of labels."""

    def __init__(self, kind: MetricKind, name: str, about: str, labels: Sequence[str] = ()) -> None:
        self.kind, self.name, self.about = kind, name, about
        self.labels = tuple(labels)
        self._lines = [_head(kind, name, about)]

    def add(self, value: float | Histogram, *labels: str) -> None:
        """Add a number or a histogram."""
        self._lines.append(_sample(self.name, self.labels, labels, value))

    def __str__(self) -> str:
        return "".join(self._lines)


def exposition(families: Iterable[MetricFamily]) -> bytes:
    """Return the body of a response to a scrape."""
    return "".join(map(str, families)).encode()


class OwnedSeries:
    """A number, or a histogram if there are `bounds`, for each owner and set of labels."""

    def __init__(
        self,
        kind: MetricKind,
        name: str,
        about: str,
        labels: Sequence[str],
        bounds: tuple[float, ...] = (),
    ) -> None:
        self.kind, self.name, self.about = kind, name, about
        self._head = _head(kind, name, about)
        self.labels = tuple(labels)
        self._bounds = bounds
        self._numbers: dict[SeriesOwner, dict[Labels, float]] = {}
        self._histograms: dict[SeriesOwner, dict[Labels, Histogram]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._numbers.values())) + sum(map(len, self._histograms.values()))

    def add(self, owner: SeriesOwner, *labels: str) -> None:
        """Count something."""
        values = self._numbers.setdefault(owner, {})
        values[labels] = values.get(labels, 0.0) + 1.0

    def put(self, owner: SeriesOwner, *labels: str, value: float) -> None:
        """Set the present value."""
        self._numbers.setdefault(owner, {})[labels] = value

    def observe(self, owner: SeriesOwner, *labels: str, value: float) -> None:
        """Count one value in a histogram."""
        histograms = self._histograms.setdefault(owner, {})
        found = histograms.get(labels)
        if found is None:
            found = histograms[labels] = Histogram(self._bounds)
        found.add(value)

    def remove(self, owner: SeriesOwner) -> None:
        """Forget an owner's series; safe without any."""
        self._numbers.pop(owner, None)
        self._histograms.pop(owner, None)

    def pieces(self) -> Iterator[str]:
        """Write it, some owners at a time; it may change between two pieces."""
        yield self._head
        for series in (self._numbers, self._histograms):
            owners = list(series)
            for start in range(0, len(owners), _OWNERS_A_PIECE):
                yield "".join(
                    _sample(self.name, self.labels, labels, value)
                    for owner in owners[start : start + _OWNERS_A_PIECE]
                    for labels, value in series.get(owner, {}).items()
                )


def _head(kind: str, name: str, about: str) -> str:
    return f"# HELP {name} {about}\n# TYPE {name} {kind}\n"


def _sample(name: str, names: Labels, values: Labels, value: float | Histogram) -> str:
    pairs = ",".join(
        f'{label}="{_escaped(text)}"' for label, text in zip(names, values, strict=True)
    )
    braced = f"{{{pairs}}}" if names else ""
    if not isinstance(value, Histogram):
        return f"{name}{braced} {_number(value)}\n"
    opened = f"{{{pairs}," if names else "{"
    counts = list(accumulate(value.counts))
    buckets = "".join(
        f'{name}_bucket{opened}le="{bound}"}} {count}\n'
        for bound, count in zip((*map(_number, value.bounds), "+Inf"), counts, strict=True)
    )
    return f"{buckets}{name}_sum{braced} {_number(value.sum)}\n{name}_count{braced} {counts[-1]}\n"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else repr(value)
