"""Metrics in Prometheus' text format. Pure.

A library would do, but that it adds `_total` to the names of counters: KubeElasti's dashboards know
them without.
"""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from elasti.resolver.proxy.statistics import Histogram

Labels = tuple[str, ...]


class Family:
    """One metric: its name, what it means, and a line for each set of labels."""

    def __init__(
        self,
        kind: Literal["counter", "gauge", "histogram"],
        name: str,
        about: str,
        labels: Sequence[str] = (),
    ) -> None:
        self._name = name
        self._labels = tuple(labels)
        self._lines = [f"# HELP {name} {about}\n# TYPE {name} {kind}\n"]

    def add(self, value: float, *labels: str) -> None:
        """Add a number."""
        self._lines.append(f"{self._name}{self._braced(labels)} {_number(value)}\n")

    def add_histogram(self, histogram: Histogram, *labels: str) -> None:
        """Add a histogram, each count with those of what took less."""
        braced = self._braced(labels)
        opened = f"{braced[:-1]}," if braced else "{"
        words = (*map(_number, histogram.bounds), "+Inf")
        counts = list(accumulate(histogram.counts))
        self._lines += [
            f'{self._name}_bucket{opened}le="{word}"}} {count}\n'
            for word, count in zip(words, counts, strict=True)
        ]
        self._lines.append(f"{self._name}_sum{braced} {_number(histogram.sum)}\n")
        self._lines.append(f"{self._name}_count{braced} {counts[-1]}\n")

    def __str__(self) -> str:
        return "".join(self._lines)

    def _braced(self, values: Labels) -> str:
        if not self._labels:
            return ""
        pairs = zip(self._labels, values, strict=True)
        return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in pairs) + "}"


def exposition(families: Iterable[Family]) -> bytes:
    """Return what a server of metrics answers."""
    return "".join(map(str, families)).encode()


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)
