"""A small file that another process replaces: token, certificate, key, CA bundle.

Each read compares the file's identity (a `stat`, some microseconds) and reads the content again
when it differs. Kubelets swap a symbolic link, which changes the inode, so a rotation is seen at
once. File systems with coarse times could hide a change in place: an upper age forces a reading.

Reads block. The files are a few kilobytes on a local or in-memory file system, and a thread for
each would cost more than the read itself.

A reading that fails keeps the last good content, because rotation by delete-and-create has a
moment without a file. After `forget` there is no such grace: the content was refused.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from kubeloop.client.errors import CredentialError

if TYPE_CHECKING:
    import os
    from pathlib import Path

_LOG = logging.getLogger(__name__)

_Stamp = tuple[int, int, int, int]


class WatchedFile:
    """The present content of a file. `origin` names the setting that points at it, for errors."""

    def __init__(self, path: Path, *, origin: str = "", max_age: float = 60.0) -> None:
        self.path = path
        self._origin = origin
        self._max_age = max_age
        self._content: bytes | None = None
        self._stamp: _Stamp | None = None
        self._read_at: float | None = None
        self._warned = False

    def read(self) -> bytes:
        """Return the content, the same object while it is unchanged. Raises `CredentialError`."""
        try:
            return self._read()
        except (OSError, ValueError) as error:
            # ValueError: a path that no file system could hold, with a NUL in it for one.
            if self._content is None:
                raise self._error(error) from error
            self._warn(error)
            return self._content

    def forget(self) -> None:
        """Drop what is known: the next read must succeed."""
        self._content = None
        self._stamp = None

    def _read(self) -> bytes:
        stamp = _stamp(self.path.stat())
        if self._content is not None and stamp == self._stamp and not self._too_old():
            return self._content
        content = self.path.read_bytes()
        self._stamp = stamp
        self._read_at = _loop_time()
        self._warned = False
        if content != self._content:
            self._content = content
        assert self._content is not None
        return self._content

    def _too_old(self) -> bool:
        now = _loop_time()
        if now is None:
            return False
        return self._read_at is None or not 0 <= now - self._read_at < self._max_age

    def _warn(self, error: Exception) -> None:
        if not self._warned:
            self._warned = True
            _LOG.warning("cannot re-read %s, keeping its last content: %s", self.path, error)

    def _error(self, error: Exception) -> CredentialError:
        lead = f"{self._origin}: " if self._origin else ""
        return CredentialError(f"{lead}cannot read {self.path}: {_remedy(error)}")


def _remedy(error: Exception) -> str:
    match error:
        case FileNotFoundError():
            return "no such file; correct the path, or create the file"
        case PermissionError():
            return "permission denied; make it readable for the user that runs this process"
        case IsADirectoryError():
            return "it is a directory; name a file in it"
        case OSError():
            return error.strerror or str(error)
        case _:
            return str(error)


def _stamp(status: os.stat_result) -> _Stamp:
    return (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def _loop_time() -> float | None:
    """Return the running loop's time; None before there is a loop, while configuration is read."""
    try:
        return asyncio.get_running_loop().time()
    except RuntimeError:
        return None
