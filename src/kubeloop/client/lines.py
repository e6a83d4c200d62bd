"""Lines out of pieces of a stream, cut anywhere; a line may be megabytes long."""

from __future__ import annotations

from kubeloop.client.chunks import FramingError

# etcd takes objects of 1.5 MiB; aggregated API servers may take more, nobody takes this.
MAX_LINE = 64 * 1024 * 1024


class LineSplitter:
    """Collects bytes into lines. What follows the last newline waits, and is lost at the end."""

    def __init__(self, *, limit: int = MAX_LINE) -> None:
        self._limit = limit
        self._tail: list[bytes] = []
        self._tail_size = 0

    def feed(self, data: bytes) -> list[bytes]:
        """Return the lines completed by `data`, without newlines; empty lines are left out.

        Raises `FramingError` for a line above the limit.
        """
        lines = data.split(b"\n")
        if len(lines) > 1:
            if self._tail:
                self._tail.append(lines[0])
                lines[0] = b"".join(self._tail)
                self._tail = []
            self._tail_size = 0
        rest = lines.pop()
        if rest:
            self._tail.append(rest)
            self._tail_size += len(rest)
            if self._tail_size > self._limit:
                raise FramingError(f"a line of more than {self._limit} bytes")
        return [line for line in lines if line] if b"" in lines else lines
