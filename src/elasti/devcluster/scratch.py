"""A directory for what a cluster without a data directory writes: logs and volumes of its pods.

It goes with the cluster. One that was killed leaves its own behind; whoever starts next removes what
nobody holds any more.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_PREFIX = "elasti-dev-"
_LOCK = "held"
# Somebody else's directory exists for a moment before it is held.
_YOUNGEST = 60.0


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
