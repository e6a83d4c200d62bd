"""Prometheus' text format, as far as one metric is concerned. Pure.

The text comes from pods, which may be anybody's: no line may cost more than its length, so nothing is
matched twice (possessive repetitions).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_SAMPLE = re.compile(
    r"(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*+)(?:[ \t]*+\{(?P<labels>.*)\})?[ \t]++(?P<value>\S++)"
    r"(?:[ \t]++-?\d++)?[ \t]*+\Z"
)
_LABEL = re.compile(
    r'[ \t]*+([a-zA-Z_][a-zA-Z0-9_]*+)[ \t]*+=[ \t]*+"((?:[^"\\]|\\.)*+)"[ \t]*+(?:,|\Z)'
)
_ESCAPES = {"\\\\": "\\", '\\"': '"', "\\n": "\n"}
_ESCAPE = re.compile(r"\\[\\\"n]")


class NotExposition(ValueError):
    """A line of the wanted metric that is not in the text format."""


def total(text: str, metric: str, labels: Mapping[str, str]) -> float | None:
    """Return the sum of a metric's samples that have these labels; None where there is none.

    Raises NotExposition for a line of that metric that cannot be read.
    """
    values = [value for found, value in samples(text, metric) if labels.items() <= found.items()]
    return sum(values) if values else None


def samples(text: str, metric: str) -> Iterator[tuple[dict[str, str], float]]:
    """Iterate over the samples of one metric."""
    for line in text.split("\n"):  # other line ends may stand in labels
        if not line.startswith(metric) or line[len(metric) : len(metric) + 1] not in " \t{":
            continue
        match = _SAMPLE.match(line)
        if match is None:
            raise NotExposition(f"{line[:200]!r} is not in Prometheus' text format")
        try:
            value = float(match["value"])
        except ValueError:
            raise NotExposition(f"{match['value'][:80]!r} is not a number") from None
        yield _labels(match["labels"] or ""), value


def _labels(text: str) -> dict[str, str]:
    found, position, end = {}, 0, len(text.rstrip())
    while position < end:
        match = _LABEL.match(text, position)
        if match is None:
            raise NotExposition(f"labels {text[:200]!r} cannot be read")
        found[match[1]] = _ESCAPE.sub(lambda escape: _ESCAPES[escape[0]], match[2])
        position = match.end()
    return found
