"""Reads metrics in Prometheus' text format. Pure.

The text may come from any pod. It is read chunk by chunk, so that the whole of it is never held, and only
lines of the wanted metric are parsed. No line may be endless, and none may cost more than its length, so
nothing is matched twice (possessive repetitions).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping

_SAMPLE = re.compile(
    r"(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*+)(?:[ \t]*+\{(?P<labels>.*)\})?[ \t]++(?P<value>\S++)"
    r"(?:[ \t]++-?\d++)?[ \t]*+\Z"
)
_LABEL = re.compile(
    r'[ \t]*+([a-zA-Z_][a-zA-Z0-9_]*+)[ \t]*+=[ \t]*+"((?:[^"\\]|\\.)*+)"[ \t]*+(?:,|\Z)'
)
_ESCAPES = {"\\\\": "\\", '\\"': '"', "\\n": "\n"}
_ESCAPE = re.compile(r"\\[\\\"n]")
_MAX_LINE = 64 * 1024


class NotExposition(ValueError):
    """A line that is not in the text format."""


class MetricSum:
    """The sum of a metric's samples that count, of a text that comes in pieces.

    `accepts` says by its labels whether a sample counts. `is_declared`: the text names the metric,
    perhaps without any sample. Raises NotExposition for a line of that metric that cannot be read,
    and for one without an end.
    """

    def __init__(self, metric: str, accepts: Callable[[Mapping[str, str]], bool]) -> None:
        self._metric = metric
        # OpenMetrics declares counters without the suffix that their samples have.
        family = metric.removesuffix("_total")
        self._sought = family.encode()
        self._declaration = re.compile(
            rf"^# (?:TYPE|HELP) {re.escape(family)}(?:_total)?[ \t\r\n]".encode(), re.MULTILINE
        )
        self._accepts = accepts
        self._begun = b""
        self._sum: float | None = None
        self.is_declared = False

    def feed(self, piece: bytes) -> None:
        """Read on; the last line may go on in the next piece."""
        whole, line_end, begun = (self._begun + piece).rpartition(b"\n")
        if len(begun) > _MAX_LINE:
            raise NotExposition(f"a line is longer than {_MAX_LINE} bytes")
        self._begun = begun
        if line_end:
            self._read(whole)

    def end(self) -> None:
        """Read the last line, which may have no end."""
        self._read(self._begun)
        self._begun = b""

    def result(self) -> float | None:
        """Return the sum, at the end; None if no sample counts."""
        self.end()
        return self._sum

    def _read(self, lines: bytes) -> None:
        if self._sought not in lines:
            return
        self.is_declared = self.is_declared or bool(self._declaration.search(lines))
        for found, value in samples(lines.decode("utf-8", "replace"), self._metric):
            self.is_declared = True
            if self._accepts(found):
                self._sum = value + (self._sum or 0.0)


def samples(text: str, metric: str) -> Iterator[tuple[dict[str, str], float]]:
    """Iterate over the samples of one metric, as labels and value. Raises NotExposition."""
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
