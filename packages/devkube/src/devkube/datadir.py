"""Directories of a cluster: a data directory that is kept, or a scratch directory that is not.

A data directory is locked by the process that uses it, and remembers what must be the same next time.
A scratch directory holds logs and volumes of a cluster without a data directory; one that a killed
cluster left behind is removed by the next that starts.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

_PREFIX = "devkube-"
_LOCK = "held"
# Another process's directory exists for a moment before it is held.
_YOUNGEST = 60.0


class DirectoryInUse(Exception):
    """Another process runs a cluster on the directory."""


class DamagedFile(Exception):
    """A file of a cluster's directory cannot be read; to go on would lose what it held."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(
            f"{path} is damaged ({why}); put a copy of the directory back, or begin again with an empty"
            " one"
        )


@contextlib.contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Hold a directory; made if it is missing. Raises DirectoryInUse.

    The kernel gives the lock back however the process ends.
    """
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.pread(descriptor, 32, 0).decode(errors="replace").strip()
            raise DirectoryInUse(
                f"the data directory {directory} is in use by another cluster"
                f" (process {owner or 'unknown'}); stop that one, or use another --data-dir"
            ) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)


def read_ranges(directory: Path) -> str:
    """Return the name of the addresses that were used last; empty the first time."""
    path = directory / "addresses"
    return path.read_text().strip() if path.exists() else ""


def keep_ranges(directory: Path, name: str) -> None:
    """Remember the addresses."""
    write_whole(directory / "addresses", f"{name}\n".encode())


def write_whole(path: Path, content: bytes) -> None:
    """Write a private file in one step: a process killed meanwhile leaves no half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, draft = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        Path(draft).replace(path)
    except BaseException:
        Path(draft).unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def scratch_directory() -> Iterator[Path]:
    """Make a directory, hold it, and remove it in the end."""
    _sweep(Path(tempfile.gettempdir()))
    directory = Path(tempfile.mkdtemp(prefix=_PREFIX))
    descriptor = os.open(directory / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)
        os.close(descriptor)


def _sweep(parent: Path) -> None:
    for directory in parent.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            if _is_abandoned(directory):
                shutil.rmtree(directory, ignore_errors=True)


def _is_abandoned(directory: Path) -> bool:
    found = directory.stat()
    if found.st_uid != os.geteuid() or time.time() - found.st_mtime < _YOUNGEST:
        return False
    descriptor = os.open(directory / _LOCK, os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        os.close(descriptor)
    return True
