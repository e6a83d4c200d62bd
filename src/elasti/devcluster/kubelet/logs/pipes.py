"""From a container's output to its log, without a thread and without waiting."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_CHUNK = 64 * 1024


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
        """Take one piece: True where there was one, False for not now, None at the end."""
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
