"""Lines out of pieces of a stream, cut anywhere; a line may be megabytes long.

Lines are views into the piece that they came in, not copies: for events of some kilobytes, copying
them once more costs a fifth of the whole decoding.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kubeloop.client.chunks import FramingError

if TYPE_CHECKING:
    from kubeloop.objects.codec import Line

# etcd takes objects of 1.5 MiB; aggregated API servers may take more, nobody takes this.
MAX_LINE = 64 * 1024 * 1024


class LineSplitter:
    """Collects bytes into lines. What follows the last newline waits, and is lost at the end."""

    def __init__(self, *, limit: int = MAX_LINE) -> None:
        self._limit = limit
        self._tail: list[Line] = []
        self._tail_size = 0

    def feed(self, data: bytes) -> list[Line]:
        """Return the lines completed by `data`, without newlines; empty lines are left out.

        Raises `FramingError` for a line above the limit.
        """
        lines: list[Line] = []
        view, find = memoryview(data), data.find
        start = self._finish_tail(view, find(b"\n"), lines)
        end = find(b"\n", start)
        while end >= 0:
            if end > start:
                lines.append(view[start:end])
            start = end + 1
            end = find(b"\n", start)
        self._keep(data[start:])
        return lines

    def _finish_tail(self, view: memoryview, end: int, lines: list[Line]) -> int:
        """Complete the line that waits; return where the next one begins."""
        if end < 0 or not self._tail:
            return 0
        lines.append(b"".join((*self._tail, view[:end])))
        self._tail.clear()
        self._tail_size = 0
        return end + 1

    def _keep(self, rest: bytes) -> None:
        if rest:
            self._tail.append(rest)
            self._tail_size += len(rest)
            if self._tail_size > self._limit:
                raise FramingError(f"a line of more than {self._limit} bytes")
