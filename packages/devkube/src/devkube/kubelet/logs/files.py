"""The logs of a pod's containers, written: lines, each after its time.

Of every container the present run and the one before are kept, each in a file that grows as long as the run
prints. Output is read from a pipe without a thread and without waiting.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import os
from collections.abc import Callable
from pathlib import Path

from kubeloop.aio.clock import Clock

_LONGEST_LINE = 1024 * 1024
_CHUNK = 64 * 1024
_KEPT = 2


class LogFile:
    """Written by one, read by many; readers that follow wait on `grown`."""

    def __init__(self, path: Path, *, clock: Clock) -> None:
        self.path = path
        self._clock = clock
        self._rest = b""
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("ab", buffering=0)
        self._waiting: set[asyncio.Future[None]] = set()
        self.is_closed = False

    def feed(self, data: bytes) -> None:
        """Take what was printed."""
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()
        if len(self._rest) >= _LONGEST_LINE:
            lines.append(self._rest)
            self._rest = b""
        stamp = stamp_of(self._clock.now())
        self._append(b"".join(b"%s %s\n" % (stamp, line) for line in lines))

    def close(self) -> None:
        """Stop writing; an incomplete last line is kept."""
        if self.is_closed:
            return
        if self._rest:
            self._append(b"%s %s" % (stamp_of(self._clock.now()), self._rest))
            self._rest = b""
        self._file.close()
        self.is_closed = True
        self._wake()

    def remove(self) -> None:
        """Forget it all."""
        self.close()
        self.path.unlink(missing_ok=True)

    async def grown(self) -> None:
        """Wait until there is more, or there will be none."""
        if self.is_closed:
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(future)
        try:
            await future
        finally:
            self._waiting.discard(future)

    def _append(self, data: bytes) -> None:
        if not data or self.is_closed:
            return
        with contextlib.suppress(OSError):  # a full disk must not end the kubelet
            self._file.write(data)
        self._wake()

    def _wake(self) -> None:
        for future in self._waiting:
            if not future.done():
                future.set_result(None)


def stamp_of(moment: dt.datetime) -> bytes:
    """Return a time as lines begin with it; they sort as their times do."""
    return moment.astimezone(dt.UTC).strftime("%Y-%m-%dT%H:%M:%S.%f000Z").encode()


class OutputPipe:
    """The reading end of a container's output. `writer` is for the container; close it afterwards."""

    def __init__(self, take: Callable[[bytes], None]) -> None:
        self._take = take
        self._reader, self.writer = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._reader, False)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._reader, self._readable)

    def close_writer(self) -> None:
        """Leave the writing end to the container."""
        if self.writer >= 0:
            os.close(self.writer)
            self.writer = -1

    def close(self) -> None:
        """Take what is there and stop."""
        self.close_writer()
        if self._reader >= 0:
            while self._read():
                pass
            self._stop()

    def _readable(self) -> None:
        if self._read() is None:
            self._stop()

    def _read(self) -> bool | None:
        """Take one piece: True if there was one, False for not now, None at the end."""
        try:
            data = os.read(self._reader, _CHUNK)
        except BlockingIOError:
            return False
        if not data:
            return None
        self._take(data)
        return True

    def _stop(self) -> None:
        if self._reader >= 0:
            self._loop.remove_reader(self._reader)
            os.close(self._reader)
            self._reader = -1


class PodLogStore:
    """Opens, keeps and forgets logs; what an earlier kubelet left is there from the beginning."""

    def __init__(self, directory: Path, *, clock: Clock) -> None:
        self._directory = directory
        self._clock = clock
        self._logs: dict[str, list[LogFile]] = {}
        for path in sorted(directory.glob("*/*.log"), key=lambda path: int(path.stem)):
            log = LogFile(path, clock=clock)
            log.close()
            self._logs.setdefault(path.parent.name, []).append(log)

    def find(self, container: str, *, previous: bool = False) -> LogFile | None:
        """Return the log of a container's present run, or of the one before."""
        logs = self._logs.get(container, [])
        at = 2 if previous else 1
        return logs[-at] if len(logs) >= at else None

    def open(self, container: str, attempt: int) -> LogFile:
        """Begin the log of a run; the oldest is forgotten."""
        path = self._directory / container / f"{attempt}.log"
        log = LogFile(path, clock=self._clock)
        logs = self._logs.setdefault(container, [])
        logs[:] = [known for known in logs if known.path != path]
        logs.append(log)
        while len(logs) > _KEPT:
            logs.pop(0).remove()
        return log

    def close(self) -> None:
        """Close every log."""
        for logs in self._logs.values():
            for log in logs:
                log.close()
